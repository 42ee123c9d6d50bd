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

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
)

// version is one version of an image at its upstream.
type version struct {
	etag   string
	bytes  []byte
	digest ident.Digest
}

// testVersions returns images with a hole in the middle, at the end or nowhere.
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

// workload runs one process after another on a volume, and remembers which copies were reported as
// ready.
type workload struct {
	t         *testing.T
	random    *rand.Rand
	v         *faultfs.Volume
	d         *Disk
	end       func() // ends the process
	versions  []version
	ids       []ident.ID
	unmanaged map[string]string         // files of other programs: path and content
	reported  map[ident.ID]ident.Digest // digests of copies that Commit or Verify reported as ready and that did not change since
	log       []string
}

var (
	workloadIDs    = []ident.ID{{Name: "parrot", UUID: "6846a0b2"}, {Name: "willow", UUID: "00000224"}}
	unmanagedFiles = map[string]string{
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

// plant writes unmanaged files, durably.
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

// note adds a line to the log of a failed test.
func (w *workload) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *workload) fatalf(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log {
		w.t.Log(line)
	}
	changes := changesOf(w.v)
	w.t.Logf("the last changes of %d: %v", len(changes), changes[max(0, len(changes)-25):])
	w.t.Fatalf(format, args...)
}

// changesOf returns the operations on v that change or sync files.
func changesOf(v *faultfs.Volume) []faultfs.Op {
	return slices.DeleteFunc(v.Trace(), func(op faultfs.Op) bool { return op.ChangeNumber == 0 })
}

// start starts a process.
func (w *workload) start(v *faultfs.Volume) {
	w.t.Helper()
	d, err := Open(v.Path())
	if err != nil {
		w.fatalf("open: %v", err)
	}
	w.v, w.d = v, d
	unlock, err := d.Lock()
	if err != nil {
		w.fatalf("lock: %v", err)
	}
	w.end = sync.OnceFunc(func() {
		unlock()
		d.Close()
	})
	w.t.Cleanup(w.end)
}

// randomSteps runs random operations until one fails.
func (w *workload) randomSteps(steps int) error {
	for range steps {
		id := w.ids[w.random.IntN(len(w.ids))]
		c := w.d.Stat(id)
		var err error
		switch c.State {
		case model.Ready:
			err = w.use(id, c)
		case model.Unknown:
			err = w.verify(id)
		case model.Failed:
			if w.random.IntN(2) == 0 && !c.ManifestDigest.IsZero() {
				err = w.repair(id, c)
				break
			}
			fallthrough
		default:
			err = w.fetch(id, w.versions[w.random.IntN(len(w.versions))], w.random.IntN(3) == 0)
		}
		if err != nil {
			return err
		}
		if w.random.IntN(3) == 0 {
			w.v.SyncAll() // as the kernel does from time to time
		}
	}
	return nil
}

// use runs a random operation on a ready image.
func (w *workload) use(id ident.ID, c model.Copy) error {
	switch w.random.IntN(5) {
	case 0:
		w.note("update %s", id)
		return w.d.Update(id, func(r *Record) { r.LastUsed = time.Unix(1, 0).UTC() })
	case 1:
		w.note("remove %s", id)
		delete(w.reported, id)
		err := w.d.Remove(id, Mark{})
		if id == w.ids[0] && errors.Is(err, os.ErrExist) {
			return nil // the folder is kept because of an unmanaged file
		}
		return err
	case 2, 3:
		w.note("damage %s", id)
		delete(w.reported, id)
		if err := w.v.FlipBit(filePath(id, imageFile), w.random.Int64N(c.Size)); err != nil {
			return err
		}
		return w.verify(id)
	}
	return w.verify(id)
}

func (w *workload) verify(id ident.ID) error {
	w.note("verify %s", id)
	c, err := w.d.Verify(context.Background(), id, Expected{}, func(int64) {})
	if err != nil {
		return err
	}
	w.note("verify %s: %s %s", id, c.State, c.Message)
	if c.State == model.Ready {
		w.reported[id] = c.SHA512
	}
	return nil
}

// repair repairs an image with the chunks of a peer.
func (w *workload) repair(id ident.ID, c model.Copy) error {
	i := slices.IndexFunc(w.versions, func(v version) bool { return v.digest == c.SHA512 })
	var fetched []int64
	c, err := w.d.Repair(context.Background(), id, ident.Digest{}, fetchFrom(w.versions[i].bytes, &fetched), func(int64) {})
	w.note("repair %s: chunks %v, %s, error %v", id, fetched, c.State, err)
	if err != nil {
		return err
	}
	w.reported[id] = c.SHA512
	return nil
}

// fetch resumes or begins a partial file, in pieces. With stopEarly, it may stop before the end.
func (w *workload) fetch(id ident.ID, v version, stopEarly bool) (err error) {
	p, err := w.d.OpenPart(context.Background(), id, PartOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	w.note("fetch %s %s: partial file at %d of %+v", id, v.etag, p.Offset(), p.Source())
	if p.Source().ETag != v.etag {
		if err := p.Begin(PartSource{ID: "x", ETag: v.etag, Size: int64(len(v.bytes))}); err != nil {
			return err
		}
	}
	if p.Offset() > int64(len(v.bytes)) {
		w.fatalf("%s: partial file at %d of %d bytes", id, p.Offset(), len(v.bytes))
	}
	for p.Offset() < int64(len(v.bytes)) {
		piece := min(int64(len(v.bytes))-p.Offset(), 1+w.random.Int64N(2*ChunkSize))
		if p.Offset()%ChunkSize == 0 && w.random.IntN(2) == 0 {
			err = appendAll(p, v.bytes[:min(int64(len(v.bytes)), p.Offset()+2*ChunkSize)])
		} else {
			_, err = p.ReadFrom(bytes.NewReader(v.bytes[p.Offset():][:piece]))
		}
		if err != nil {
			return err
		}
		if stopEarly && w.random.IntN(3) == 0 {
			w.note("fetch %s %s: stops at %d", id, v.etag, p.Offset())
			return p.Close()
		}
	}
	want := v.digest
	if w.random.IntN(2) == 0 {
		want = ident.Digest{}
	}
	c, err := p.Commit(want)
	if err != nil {
		return err
	}
	w.note("fetch %s %s: %s", id, v.etag, c.State)
	if c.State != model.Ready || c.SHA512 != v.digest {
		w.fatalf("commit of %s returned %+v", id, c)
	}
	w.reported[id] = v.digest
	return nil
}
