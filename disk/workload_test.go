package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
)

// version is what an origin may serve.
type version struct {
	etag   string
	bytes  []byte
	digest Digest
}

// testVersions are images with a hole in the middle, at the end or nowhere.
func testVersions(sizes ...int) []version {
	random := rand.NewChaCha8([32]byte{7})
	var versions []version
	for i, size := range sizes {
		b := make([]byte, size)
		random.Read(b)
		if hole := (i + 1) % 3 * ChunkSize; hole < size {
			clear(b[hole:min(size, hole+ChunkSize)])
		}
		versions = append(versions, version{fmt.Sprintf("v%d", i), b, digest512(b)})
	}
	return versions
}

// life is one process after another on a volume, and what they were told.
type life struct {
	t        *testing.T
	random   *rand.Rand
	v        *faultfs.Volume
	d        *Disk
	end      func() // of the process, however it comes
	versions []version
	ids      []ID
	planted  map[string]string // foreign files and what is in them
	told     map[ID]Digest     // ready, as Commit or Verify said, and nothing done to it since
	log      []string
}

var (
	lifeIDs      = []ID{{"parrot", "6846a0b2"}, {"willow", "00000224"}}
	plantedFiles = map[string]string{
		"backing-images/README":                "not a folder",
		"backing-images/parrot-6846a0b2/notes": "mine",
		"backing-images/elsewhere/backing":     "foreign",
		"tmp/parrot-6846a0b2.tmp":              "Longhorn's",
	}
)

func newVolumeDisk(t *testing.T, f *faultfs.FS) *faultfs.Volume {
	t.Helper()
	v := f.NewVolume()
	if _, err := Init(v.Path()); err != nil {
		t.Fatal(err)
	}
	return v
}

func plant(t *testing.T, v *faultfs.Volume, files map[string]string) {
	t.Helper()
	for name, text := range files {
		name = filepath.Join(v.Path(), name)
		err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	v.SyncAll()
}

func (l *life) note(format string, args ...any) { l.log = append(l.log, fmt.Sprintf(format, args...)) }

func (l *life) fatalf(format string, args ...any) {
	l.t.Helper()
	for _, line := range l.log {
		l.t.Log(line)
	}
	changes := changesOf(l.v)
	l.t.Logf("the last changes of %d: %v", len(changes), changes[max(0, len(changes)-25):])
	l.t.Fatalf(format, args...)
}

// changesOf returns the operations on v that changed or synced something.
func changesOf(v *faultfs.Volume) []faultfs.Op {
	return slices.DeleteFunc(v.Trace(), func(op faultfs.Op) bool { return op.Nth == 0 })
}

// start is the start of a process.
func (l *life) start(v *faultfs.Volume) {
	l.t.Helper()
	d, err := Open(v.Path())
	if err != nil {
		l.fatalf("open: %v", err)
	}
	l.v, l.d = v, d
	unlock, err := d.Lock()
	if err != nil {
		l.fatalf("lock: %v", err)
	}
	l.end = sync.OnceFunc(func() {
		unlock()
		d.Close()
	})
	l.t.Cleanup(l.end)
}

// live does random things until one fails. It returns nil at the end of its days.
func (l *life) live(steps int) error {
	for range steps {
		id := l.ids[l.random.IntN(len(l.ids))]
		c := l.d.Stat(id)
		var err error
		switch c.State {
		case Ready:
			err = l.use(id, c)
		case Unknown:
			err = l.verify(id)
		case Failed:
			if l.random.IntN(2) == 0 && !c.ManifestDigest.IsZero() {
				err = l.repair(id, c)
				break
			}
			fallthrough
		default:
			err = l.fetch(id, l.versions[l.random.IntN(len(l.versions))], l.random.IntN(3) == 0)
		}
		if err != nil {
			return err
		}
		if l.random.IntN(3) == 0 {
			l.v.SyncAll() // as the kernel does every now and then
		}
	}
	return nil
}

// use does something to a ready image.
func (l *life) use(id ID, c Copy) error {
	switch l.random.IntN(5) {
	case 0:
		l.note("update %s", id)
		return l.d.Update(id, func(r *Record) { r.LastUsed = time.Unix(1, 0).UTC() })
	case 1:
		l.note("remove %s", id)
		delete(l.told, id)
		err := l.d.Remove(id)
		if id == l.ids[0] && errors.Is(err, os.ErrExist) {
			return nil // its foreign file keeps the folder
		}
		return err
	case 2, 3:
		l.note("damage %s", id)
		delete(l.told, id)
		if err := l.v.Flip(id.file(imageFile), l.random.Int64N(c.Size)); err != nil {
			return err
		}
		return l.verify(id)
	}
	return l.verify(id)
}

func (l *life) verify(id ID) error {
	l.note("verify %s", id)
	c, err := l.d.Verify(context.Background(), id, Expected{}, func(int64) {})
	if err != nil {
		return err
	}
	l.note("verify %s: %s %s", id, c.State, c.Message)
	if c.State == Ready {
		l.told[id] = c.SHA512
	}
	return nil
}

// repair has a peer that has the image, as every peer has that can be asked.
func (l *life) repair(id ID, c Copy) error {
	i := slices.IndexFunc(l.versions, func(v version) bool { return v.digest == c.SHA512 })
	var asked []int64
	c, err := l.d.Repair(context.Background(), id, Digest{}, peerWith(l.versions[i].bytes, &asked), func(int64) {})
	l.note("repair %s: chunks %v, %s, error %v", id, asked, c.State, err)
	if err != nil {
		return err
	}
	l.told[id] = c.SHA512
	return nil
}

// fetch resumes or begins, perhaps in pieces, perhaps not to the end.
func (l *life) fetch(id ID, v version, stopEarly bool) (err error) {
	p, err := l.d.OpenPart(context.Background(), id, PartOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	l.note("fetch %s %s: part at %d of %+v", id, v.etag, p.Offset(), p.Source())
	if p.Source().ETag != v.etag {
		if err := p.Begin(PartSource{ID: "x", ETag: v.etag, Size: int64(len(v.bytes))}); err != nil {
			return err
		}
	}
	if p.Offset() > int64(len(v.bytes)) {
		l.fatalf("%s: part at %d of %d bytes", id, p.Offset(), len(v.bytes))
	}
	for p.Offset() < int64(len(v.bytes)) {
		piece := min(int64(len(v.bytes))-p.Offset(), 1+l.random.Int64N(2*ChunkSize))
		if p.Offset()%ChunkSize == 0 && l.random.IntN(2) == 0 {
			err = putAll(p, v.bytes[:min(int64(len(v.bytes)), p.Offset()+2*ChunkSize)])
		} else {
			_, err = p.ReadFrom(bytes.NewReader(v.bytes[p.Offset():][:piece]))
		}
		if err != nil {
			return err
		}
		if stopEarly && l.random.IntN(3) == 0 {
			l.note("fetch %s %s: stops at %d", id, v.etag, p.Offset())
			return p.Close()
		}
	}
	want := v.digest
	if l.random.IntN(2) == 0 {
		want = Digest{}
	}
	c, err := p.Commit(want)
	if err != nil {
		return err
	}
	l.note("fetch %s %s: %s", id, v.etag, c.State)
	if c.State != Ready || c.SHA512 != v.digest {
		l.fatalf("commit of %s says %+v", id, c)
	}
	l.told[id] = v.digest
	return nil
}
