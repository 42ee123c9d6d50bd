package disk

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// checkReady asserts that what is called ready has the right bytes and manifest.
func (l *life) checkReady(id ID, c Copy) {
	l.t.Helper()
	data, err := os.ReadFile(filepath.Join(l.d.path, id.file(imageFile)))
	if err != nil {
		l.fatalf("%s is ready: %v", id, err)
	}
	if !slices.ContainsFunc(l.versions, func(v version) bool { return v.digest == c.SHA512 && bytes.Equal(v.bytes, data) }) {
		l.fatalf("%s is ready with wrong bytes: %+v has %d bytes with sha512 %s", id, c, len(data), digest512(data).Short())
	}
	manifest, err := os.ReadFile(filepath.Join(l.d.path, id.file(chunksFile)))
	if err != nil {
		l.fatalf("%s is ready without a manifest: %v", id, err)
	}
	want := chunkHeader()
	for piece := range slices.Chunk(data, ChunkSize) {
		h := hashBytes(piece, false)
		want = append(want, h[:]...)
	}
	if !bytes.Equal(manifest, want) {
		l.fatalf("%s is ready with a wrong manifest of %d bytes, want %d", id, len(manifest), len(want))
	}
	if named := digest256(want[chunkHeaderSize:]); c.ManifestDigest != named {
		l.fatalf("%s is ready with the manifest %s, want %s", id, c.ManifestDigest, named)
	}
	if !c.HasCfg || !c.Owned {
		l.fatalf("%s is ready, but not described: %+v", id, c)
	}
}

// checkAfterCut asserts what a start may find, and that it goes on from there.
func (l *life) checkAfterCut() {
	l.t.Helper()
	for name, text := range l.planted {
		if got, err := os.ReadFile(filepath.Join(l.d.path, name)); string(got) != text {
			l.fatalf("foreign file %s is %q, error %v", name, got, err)
		}
	}
	for _, id := range l.ids {
		c := l.d.Stat(id)
		l.note("found %s: %s %s, part %d", id, c.State, c.Message, c.PartBytes)
		if c.State == Ready {
			l.checkReady(id, c)
		}
		if told, ok := l.told[id]; ok && c.State != Ready {
			if err := l.verify(id); err != nil {
				l.fatalf("verify %s: %v", id, err)
			}
			if c = l.d.Stat(id); c.State != Ready || c.SHA512 != told {
				l.fatalf("%s had been told ready with %s, and is %+v", id, told.Short(), c)
			}
		}
		if c.State == Unknown {
			if err := l.verify(id); err != nil {
				l.fatalf("verify %s: %v", id, err)
			}
			if c = l.d.Stat(id); c.State != Ready && c.State != Failed {
				l.fatalf("after verify %s is %+v", id, c)
			}
		}
		if c.State == Failed {
			c = l.checkRepair(id, c)
		}
		if c.State != Ready && l.random.IntN(3) > 0 { // or in the next life
			l.finish(id)
			c = l.d.Stat(id)
		}
		if c.State == Ready {
			l.checkReady(id, c)
		}
	}
}

// checkRepair asserts that a failed image still has what a repair goes by, and
// repairs it sometimes.
func (l *life) checkRepair(id ID, c Copy) Copy {
	l.t.Helper()
	i := slices.IndexFunc(l.versions, func(v version) bool { return v.digest == c.SHA512 })
	if i < 0 || int64(len(l.versions[i].bytes)) != c.Size {
		return c // another one was about to take its place
	}
	if c.ManifestDigest.IsZero() { // it could not be read: the next start tries again
		l.end()
		l.start(l.v)
		c = l.d.Stat(id)
	}
	if c.ManifestDigest.IsZero() {
		l.fatalf("%s has failed, and its manifest is lost: %+v", id, c)
	}
	if l.random.IntN(2) > 0 {
		if err := l.repair(id, c); err != nil {
			l.fatalf("repair %s: %v", id, err)
		}
	}
	return l.d.Stat(id)
}

// finish fetches the rest of an image, of the version that is there.
func (l *life) finish(id ID) {
	l.t.Helper()
	p, err := l.d.OpenPart(context.Background(), id, PartOptions{})
	if err != nil {
		l.fatalf("open part of %s: %v", id, err)
	}
	etag := p.Source().ETag
	p.Close()
	i := slices.IndexFunc(l.versions, func(v version) bool { return v.etag == etag })
	if i < 0 {
		i = l.random.IntN(len(l.versions))
	}
	if err := l.fetch(id, l.versions[i], false); err != nil {
		l.fatalf("fetch %s after the cut: %v", id, err)
	}
}

// TestPowerCut cuts the power at random operations of random lives. A failure is
// run again with -run 'TestPowerCut/<seed>$', as far as goroutines keep time.
func TestPowerCut(t *testing.T) {
	f := faultfs.Mount(t)
	versions := testVersions(2*ChunkSize+512, 2*ChunkSize, 3*ChunkSize-4096, ChunkSize+1024)
	seeds := 70
	if race.Enabled {
		seeds = 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			l := &life{t: t, random: rand.New(rand.NewPCG(uint64(seed), 0)), versions: versions, ids: lifeIDs, planted: plantedFiles, told: map[ID]Digest{}}
			v := newVolumeDisk(t, f)
			plant(t, v, l.planted)
			l.start(v)
			for cut := range uint64(3) {
				at := 1 + l.random.IntN(70)
				l.v.Restart()
				l.v.Plan(func(op faultfs.Op) error {
					if op.Nth == at {
						return faultfs.ErrStop
					}
					return nil
				})
				err := l.live(5)
				if err != nil && len(changesOf(l.v)) < at {
					l.fatalf("after %d changes: %v", len(changesOf(l.v)), err)
				}
				l.note("cut at change %d of %d: %v", at, len(changesOf(l.v)), err)
				after := l.v.Survive(uint64(seed)*100 + cut)
				l.end()
				l.v.Close()
				l.start(after)
				l.checkAfterCut()
			}
			l.end()
			l.v.Close()
		})
	}
}

// TestVerifiedFileIsDurable adopts a file that somebody wrote and did not sync. The
// record that it is right must not outlive it.
func TestVerifiedFileIsDurable(t *testing.T) {
	f := faultfs.Mount(t)
	image := sparseImage(ChunkSize + 512)
	v := newVolumeDisk(t, f)
	d, err := Open(v.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.MkdirAll(filepath.Dir(imagePath(d, imageFile)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(imagePath(d, imageFile), image, 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != Ready {
		t.Fatalf("verified: %+v, error %v", c, err)
	}
	for seed := range uint64(20) {
		after := v.Survive(seed)
		got, err := os.ReadFile(filepath.Join(after.Path(), testID.file(imageFile)))
		if err != nil || !bytes.Equal(got, image) {
			t.Errorf("seed %d: the file is not what was verified (error %v)", seed, err)
		}
		after.Close()
	}
}

// TestPartIsOfItsOrigin cuts the power while a part is begun anew from another
// origin. What counts of it afterwards is of the origin that it names.
func TestPartIsOfItsOrigin(t *testing.T) {
	t.Parallel()
	f := faultfs.Mount(t)
	versions := testVersions(2*ChunkSize, 3*ChunkSize)
	outcomes := 8
	if race.Enabled {
		outcomes = 1
	}
	for at := 1; ; at++ {
		v := newVolumeDisk(t, f)
		l := &life{t: t, random: rand.New(rand.NewPCG(1, uint64(at))), versions: versions}
		l.start(v)
		fillFrom := func(v version) error {
			p, err := l.d.OpenPart(context.Background(), testID, PartOptions{})
			if err != nil {
				return err
			}
			defer p.Close()
			if err := p.Begin(PartSource{ETag: v.etag, Size: int64(len(v.bytes))}); err != nil {
				return err
			}
			_, err = p.ReadFrom(bytes.NewReader(v.bytes))
			return err
		}
		if err := fillFrom(versions[0]); err != nil {
			l.fatalf("fill: %v", err)
		}
		v.SyncAll()
		v.Restart()
		v.Plan(func(op faultfs.Op) error {
			if op.Nth == at {
				return faultfs.ErrStop
			}
			return nil
		})
		err := fillFrom(versions[1])
		l.note("cut at change %d: %v", at, err)
		l.end()
		for seed := range uint64(outcomes) {
			after := v.Survive(seed)
			if seed == 0 {
				after = v.SurviveNothing()
			}
			l.start(after)
			p := openPart(t, l.d, PartOptions{})
			i := slices.IndexFunc(versions, func(v version) bool { return v.etag == p.Source().ETag })
			got, err := os.ReadFile(imagePath(l.d, partFile))
			if err != nil || int64(len(got)) != p.Offset() || !bytes.Equal(got, versions[i].bytes[:len(got)]) {
				l.fatalf("seed %d: part of %s is at %d and has other bytes (error %v)", seed, p.Source().ETag, p.Offset(), err)
			}
			p.Close()
			l.end()
			after.Close()
		}
		v.Close()
		if err == nil {
			return // it came to its end before
		}
	}
}
