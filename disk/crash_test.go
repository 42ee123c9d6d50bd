package disk

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// allOperations calls every method of a disk that changes an image, and returns the first error. The
// order of its file operations is the same in every run, except between concurrent goroutines.
func (w *workload) allOperations() error {
	v, id := w.versions[0], w.ids[0]
	half := int64(ChunkSize + 1)
	p, err := w.d.OpenPart(context.Background(), id, PartOptions{})
	if err != nil {
		return err
	}
	defer func() { p.Close() }()
	if err := p.Begin(PartSource{ID: "x", ETag: v.etag, Size: int64(len(v.bytes))}); err != nil {
		return err
	}
	if _, err := p.ReadFrom(bytes.NewReader(v.bytes[:half])); err != nil {
		return err
	}
	if err := p.Close(); err != nil {
		return err
	}
	w.random = rand.New(rand.NewPCG(1, 1))
	if err := w.fetch(id, v, false); err != nil {
		return err
	}
	if err := w.d.Update(id, func(r *Record) { r.LastUsed = time.Unix(1, 0).UTC() }); err != nil {
		return err
	}
	if err := w.verify(id); err != nil {
		return err
	}
	if err := w.d.WriteCfg(id, v.digest); err != nil {
		return err
	}
	delete(w.reported, id)
	if err := w.v.FlipBit(filePath(id, imageFile), 5); err != nil {
		return err
	}
	if err := w.verify(id); err != nil {
		return err
	}
	c := w.d.Stat(id)
	if c.State != model.Failed {
		return fmt.Errorf("a damaged image is %+v", c)
	}
	if err := w.repair(id, c); err != nil {
		return err
	}
	delete(w.reported, id)
	if err := w.v.FlipBit(filePath(id, imageFile), int64(len(v.bytes))-1); err != nil {
		return err
	}
	if err := w.verify(id); err != nil {
		return err
	}
	if err := w.sync(id, w.versions[1]); err != nil {
		return err
	}
	delete(w.reported, id)
	if err := w.d.Remove(id, Mark{}); err != nil {
		return err
	}
	return w.fetch(id, w.versions[1], false)
}

// sync receives the manifest of a peer, which has another algorithm, and replaces a failed image by the
// chunks of this peer.
func (w *workload) sync(id ident.ID, v version) error {
	p, err := w.d.OpenPart(context.Background(), id, PartOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Begin(PartSource{ID: "peer", ETag: v.etag, Size: int64(len(v.bytes))}); err != nil {
		return err
	}
	sums := chunkFileOf(otherAlgorithm(), v.bytes)
	m, err := p.ReceiveManifest(bytes.NewReader(sums), int64(len(v.bytes)), digest256(sums))
	if err != nil {
		return err
	}
	defer m.Close()
	if err := appendAll(p, v.bytes); err != nil {
		return err
	}
	if same, err := p.Matches(context.Background(), m); err != nil || !same {
		return fmt.Errorf("the partial file matches the manifest: %v, error %w", same, err)
	}
	c, err := p.Commit(v.digest)
	if err != nil {
		return err
	}
	switch {
	case c.ManifestDigest.IsZero(): // an error hides the manifest; without a fault it fails the test
		return fmt.Errorf("the committed copy of %s has no manifest", id)
	case c.ManifestDigest != digest256(sums):
		w.fatalf("commit of %s returned %+v", id, c)
	}
	w.reported[id] = v.digest
	return nil
}

// newWorkload creates a disk and starts a process on it.
func newWorkload(t *testing.T, f *faultfs.FS, versions []version) *workload {
	t.Helper()
	w := &workload{t: t, random: rand.New(rand.NewPCG(1, 1)), versions: versions, ids: workloadIDs[:1], reported: map[ident.ID]ident.Digest{}}
	v := newVolumeDisk(t, f)
	w.start(v)
	v.Restart() // count operations from this point
	return w
}

// TestCrashAndErrorAtEveryOperation kills the process before each single file operation of
// allOperations. It then also makes each operation fail.
func TestCrashAndErrorAtEveryOperation(t *testing.T) {
	f := faultfs.Mount(t)
	versions := testVersions(ChunkSize+1024, 4096)
	w := newWorkload(t, f, versions)
	if err := w.allOperations(); err != nil {
		w.fatalf("without any fault: %v", err)
	}
	ops := w.v.Trace()
	w.end()
	w.v.Close()
	for i, op := range ops {
		if race.Enabled && i%60 != 0 {
			continue
		}
		switch {
		case op.ChangeNumber > 0:
			t.Run("die/"+op.String(), func(t *testing.T) { dieAt(t, f, versions, op) })
		case op.Count > 1 && i%23 != 0: // only a sample of the many operations that only read
			continue
		}
		t.Run("fail/"+op.String(), func(t *testing.T) { failAt(t, f, versions, op) })
	}
}

// at returns a plan that lets op fail once with err.
func at(op faultfs.Op, err error) func(faultfs.Op) error {
	return func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.Count == op.Count {
			return err
		}
		return nil
	}
}

// dieAt kills the process before op. The next process sees all changes, because the kernel still
// runs, and finishes the operations. Then a power failure with the worst possible result follows.
func dieAt(t *testing.T, f *faultfs.FS, versions []version, op faultfs.Op) {
	t.Parallel()
	w := newWorkload(t, f, versions)
	w.v.Plan(at(op, faultfs.ErrStop))
	w.note("died: %v", w.allOperations())
	w.end()

	cut := *w // the second case: a power failure at the same moment
	cut.reported = maps.Clone(w.reported)
	after := w.v.Survive(uint64(op.ChangeNumber))
	cut.start(after)
	cut.checkAfterCrash()
	cut.end()
	after.Close()

	w.v.Restart()
	w.start(w.v)
	w.checkAfterCrash()
	w.checkReportedIsDurable()
}

// failAt makes op fail once. The process continues and retries.
func failAt(t *testing.T, f *faultfs.FS, versions []version, op faultfs.Op) {
	t.Parallel()
	errno := syscall.EIO
	if op.ChangeNumber%2 == 1 && op.Kind != "sync" {
		errno = syscall.ENOSPC
	}
	if op.Kind == "exchange" {
		errno = syscall.EINVAL // as on file systems that do not support the operation
	}
	w := newWorkload(t, f, versions)
	w.v.Plan(at(op, errno))
	w.note("failed: %v", w.allOperations())
	w.v.Plan(nil)
	if op.Kind == "rename" || op.Kind == "exchange" || op.Kind == "noreplace" || op.Kind == "sync" {
		// A removal may have been interrupted: Lock restores the folder at the next start.
		w.end()
		w.start(w.v)
	}
	w.checkAfterCrash()
	w.checkReportedIsDurable()
}

// checkReportedIsDurable simulates a power failure with the worst possible result. It checks that
// every copy that was reported as ready is still ready.
func (w *workload) checkReportedIsDurable() {
	w.t.Helper()
	w.end()
	after := w.v.SurviveSynced()
	w.v.Close()
	w.start(after)
	w.note("power failure: all changes without sync are lost")
	w.checkAfterCrash()
	w.end()
	after.Close()
}
