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

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// checkReady checks that a ready copy has the right bytes, manifest and backing.cfg.
func (w *workload) checkReady(id ident.ID, c model.Copy) {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.d.path, filePath(id, imageFile)))
	if err != nil {
		w.fatalf("%s is ready: %v", id, err)
	}
	if !slices.ContainsFunc(w.versions, func(v version) bool { return v.digest == c.SHA512 && bytes.Equal(v.bytes, data) }) {
		w.fatalf("%s is ready with wrong bytes: %+v has %d bytes with sha512 %s", id, c, len(data), digest512(data).Short())
	}
	manifest, err := os.ReadFile(filepath.Join(w.d.path, filePath(id, chunksFile)))
	if err != nil {
		w.fatalf("%s is ready without a manifest: %v", id, err)
	}
	a, _ := readChunkHeader(bytes.NewReader(manifest))
	if a == 0 || !bytes.Equal(manifest, chunkFileOf(a, data)) {
		w.fatalf("%s is ready with a wrong manifest of %d bytes", id, len(manifest))
	}
	if digest := digest256(chunkFileOf(a, data)); c.ManifestDigest != digest {
		w.fatalf("%s is ready with the manifest %s, want %s", id, c.ManifestDigest, digest)
	}
	if !c.HasCfg || !c.Owned {
		w.fatalf("%s is ready without a backing.cfg: %+v", id, c)
	}
}

// checkAfterCrash checks the files that a process finds at its start, and that it can continue.
func (w *workload) checkAfterCrash() {
	w.t.Helper()
	for name, text := range w.unmanaged {
		if got, err := os.ReadFile(filepath.Join(w.d.path, name)); string(got) != text {
			w.fatalf("unmanaged file %s is %q, error %v", name, got, err)
		}
	}
	for _, id := range w.ids {
		c := w.d.Stat(id)
		w.note("after the crash %s is %s %s, with a partial file of %d", id, c.State, c.Message, c.PartBytes)
		if c.State == model.Ready {
			w.checkReady(id, c)
		}
		if reported, ok := w.reported[id]; ok && c.State != model.Ready {
			if err := w.verify(id); err != nil {
				w.fatalf("verify %s: %v", id, err)
			}
			if c = w.d.Stat(id); c.State != model.Ready || c.SHA512 != reported {
				w.fatalf("%s was reported as ready with %s, and is now %+v", id, reported.Short(), c)
			}
		}
		if c.State == model.Unknown {
			if err := w.verify(id); err != nil {
				w.fatalf("verify %s: %v", id, err)
			}
			if c = w.d.Stat(id); c.State != model.Ready && c.State != model.Failed {
				w.fatalf("after verify %s is %+v", id, c)
			}
		}
		if c.State == model.Failed {
			c = w.checkRepair(id, c)
		}
		if c.State != model.Ready && w.random.IntN(3) > 0 { // otherwise after the next crash
			w.finish(id)
			c = w.d.Stat(id)
		}
		if c.State == model.Ready {
			w.checkReady(id, c)
		}
	}
}

// checkRepair checks that a failed image still has its manifest, and sometimes repairs the image.
func (w *workload) checkRepair(id ident.ID, c model.Copy) model.Copy {
	w.t.Helper()
	i := slices.IndexFunc(w.versions, func(v version) bool { return v.digest == c.SHA512 })
	if i < 0 || int64(len(w.versions[i].bytes)) != c.Size {
		return c // a commit that replaces the image was interrupted
	}
	if c.ManifestDigest.IsZero() { // the manifest may have been unreadable temporarily; the next start reads it again
		w.end()
		w.start(w.v)
		c = w.d.Stat(id)
	}
	if c.ManifestDigest.IsZero() {
		w.fatalf("%s is failed and has no manifest: %+v", id, c)
	}
	if w.random.IntN(2) > 0 {
		if err := w.repair(id, c); err != nil {
			w.fatalf("repair %s: %v", id, err)
		}
	}
	return w.d.Stat(id)
}

// finish fetches the remaining bytes of the version in a partial file.
func (w *workload) finish(id ident.ID) {
	w.t.Helper()
	p, err := w.d.OpenPart(context.Background(), id, PartOptions{})
	if err != nil {
		w.fatalf("open partial file of %s: %v", id, err)
	}
	etag := p.Source().ETag
	p.Close()
	i := slices.IndexFunc(w.versions, func(v version) bool { return v.etag == etag })
	if i < 0 {
		i = w.random.IntN(len(w.versions))
	}
	if err := w.fetch(id, w.versions[i], false); err != nil {
		w.fatalf("fetch %s after the power failure: %v", id, err)
	}
}

// TestPowerCut simulates a power failure at random operations of random workloads. -run
// 'TestPowerCut/<seed>$' repeats a failure, unless it depends on the order of goroutines.
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
			w := &workload{t: t, random: rand.New(rand.NewPCG(uint64(seed), 0)), versions: versions, ids: workloadIDs, unmanaged: unmanagedFiles, reported: map[ident.ID]ident.Digest{}}
			v := newVolumeDisk(t, f)
			plant(t, v, w.unmanaged)
			w.start(v)
			for cut := range uint64(3) {
				at := 1 + w.random.IntN(70)
				w.v.Restart()
				w.v.Plan(func(op faultfs.Op) error {
					if op.ChangeNumber == at {
						return faultfs.ErrStop
					}
					return nil
				})
				err := w.randomSteps(5)
				if err != nil && len(changesOf(w.v)) < at {
					w.fatalf("after %d changes: %v", len(changesOf(w.v)), err)
				}
				w.note("power failure at change %d of %d: %v", at, len(changesOf(w.v)), err)
				after := w.v.Survive(uint64(seed)*100 + cut)
				w.end()
				w.v.Close()
				w.start(after)
				w.checkAfterCrash()
			}
			w.end()
			w.v.Close()
		})
	}
}

// TestVerifiedFileIsDurable checks that Verify makes a file durable that another program wrote and
// did not sync. Otherwise only the record would survive a power failure.
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
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready {
		t.Fatalf("verified: %+v, error %v", c, err)
	}
	for seed := range uint64(20) {
		after := v.Survive(seed)
		got, err := os.ReadFile(filepath.Join(after.Path(), filePath(testID, imageFile)))
		if err != nil || !bytes.Equal(got, image) {
			t.Errorf("seed %d: the file does not have the verified bytes (error %v)", seed, err)
		}
		after.Close()
	}
}

// TestPartMatchesItsSourceAfterPowerCut simulates a power failure in a Begin with another source. The
// bytes that a resume keeps must be from the recorded source.
func TestPartMatchesItsSourceAfterPowerCut(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	f := faultfs.Mount(t)
	versions := testVersions(2*ChunkSize, 3*ChunkSize)
	const outcomes = 8
	for at := 1; ; at++ {
		v := newVolumeDisk(t, f)
		w := &workload{t: t, random: rand.New(rand.NewPCG(1, uint64(at))), versions: versions}
		w.start(v)
		fillFrom := func(v version) error {
			p, err := w.d.OpenPart(context.Background(), testID, PartOptions{})
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
			w.fatalf("fill: %v", err)
		}
		v.SyncAll()
		v.Restart()
		v.Plan(func(op faultfs.Op) error {
			if op.ChangeNumber == at {
				return faultfs.ErrStop
			}
			return nil
		})
		err := fillFrom(versions[1])
		w.note("power failure at change %d: %v", at, err)
		w.end()
		for seed := range uint64(outcomes) {
			after := v.Survive(seed)
			if seed == 0 {
				after = v.SurviveSynced()
			}
			w.start(after)
			p := openPart(t, w.d, PartOptions{})
			i := slices.IndexFunc(versions, func(v version) bool { return v.etag == p.Source().ETag })
			got, err := os.ReadFile(imagePath(w.d, partFile))
			if err != nil || int64(len(got)) != p.Offset() || !bytes.Equal(got, versions[i].bytes[:len(got)]) {
				w.fatalf("seed %d: partial file of %s is at %d and has wrong bytes (error %v)", seed, p.Source().ETag, p.Offset(), err)
			}
			p.Close()
			w.end()
			after.Close()
		}
		v.Close()
		if err == nil {
			return // the number exceeds the number of changes
		}
	}
}
