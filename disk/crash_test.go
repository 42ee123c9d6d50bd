package disk

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// wholeLife does once everything that a disk can do with an image, and returns
// the first error. It uses the same operations in the same order each time, but
// for those that goroutines do side by side.
func (l *life) wholeLife() error {
	v, id := l.versions[0], l.ids[0]
	half := int64(ChunkSize + 1)
	p, err := l.d.OpenPart(context.Background(), id, PartOptions{})
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
	l.random = rand.New(rand.NewPCG(1, 1))
	if err := l.fetch(id, v, false); err != nil {
		return err
	}
	if err := l.d.Update(id, func(r *Record) { r.LastUsed = time.Unix(1, 0).UTC() }); err != nil {
		return err
	}
	if err := l.verify(id); err != nil {
		return err
	}
	if err := l.d.WriteCfg(id, v.digest); err != nil {
		return err
	}
	delete(l.told, id)
	if err := l.v.Flip(id.file(imageFile), 5); err != nil {
		return err
	}
	if err := l.verify(id); err != nil {
		return err
	}
	c := l.d.Stat(id)
	if c.State != Failed {
		return fmt.Errorf("a damaged image is %+v", c)
	}
	if err := l.repair(id, c); err != nil {
		return err
	}
	delete(l.told, id)
	if err := l.v.Flip(id.file(imageFile), int64(len(v.bytes))-1); err != nil {
		return err
	}
	if err := l.verify(id); err != nil {
		return err
	}
	if err := l.sync(id, l.versions[1]); err != nil {
		return err
	}
	delete(l.told, id)
	if err := l.d.Remove(id); err != nil {
		return err
	}
	return l.fetch(id, l.versions[1], false)
}

// sync replaces a failed image by chunks of a peer, whose manifest comes first.
func (l *life) sync(id ID, v version) error {
	p, err := l.d.OpenPart(context.Background(), id, PartOptions{})
	if err != nil {
		return err
	}
	defer p.Close()
	if err := p.Begin(PartSource{ID: "peer", ETag: v.etag, Size: int64(len(v.bytes))}); err != nil {
		return err
	}
	var sums []byte
	for piece := range slices.Chunk(v.bytes, ChunkSize) {
		sum := HashChunk(piece)
		sums = append(sums, sum[:]...)
	}
	m, err := p.ReceiveManifest(bytes.NewReader(sums), int64(len(v.bytes)), digest256(sums))
	if err != nil {
		return err
	}
	defer m.Close()
	if err := putAll(p, v.bytes); err != nil {
		return err
	}
	if same, err := p.Matches(m); err != nil || !same {
		return fmt.Errorf("part agrees: %v, error %w", same, err)
	}
	c, err := p.Commit(v.digest)
	if err != nil {
		return err
	}
	if c.ManifestDigest != digest256(sums) {
		l.fatalf("commit of %s says %+v", id, c)
	}
	l.told[id] = v.digest
	return nil
}

// lifeOn makes a disk and starts a process on it.
func lifeOn(t *testing.T, f *faultfs.FS, versions []version) *life {
	t.Helper()
	l := &life{t: t, random: rand.New(rand.NewPCG(1, 1)), versions: versions, ids: lifeIDs[:1], told: map[ID]Digest{}}
	v := newVolumeDisk(t, f)
	l.start(v)
	v.Restart() // counts from here
	return l
}

// TestEveryOperation lets the process die before, and then fail at, each single
// operation of a whole life.
func TestEveryOperation(t *testing.T) {
	f := faultfs.Mount(t)
	versions := testVersions(ChunkSize+1024, 4096)
	l := lifeOn(t, f, versions)
	if err := l.wholeLife(); err != nil {
		l.fatalf("without any fault: %v", err)
	}
	ops := l.v.Trace()
	l.end()
	l.v.Close()
	for i, op := range ops {
		if race.Enabled && i%60 != 0 {
			continue
		}
		switch {
		case op.Nth > 0:
			t.Run("die/"+op.String(), func(t *testing.T) { dieAt(t, f, versions, op) })
		case op.N > 1 && i%23 != 0: // there are too many that only look
			continue
		}
		t.Run("fail/"+op.String(), func(t *testing.T) { failAt(t, f, versions, op) })
	}
}

// at returns a plan that gives err at op, once.
func at(op faultfs.Op, err error) func(faultfs.Op) error {
	return func(now faultfs.Op) error {
		if now.Kind == op.Kind && now.Path == op.Path && now.N == op.N {
			return err
		}
		return nil
	}
}

// dieAt kills the process before op. The next one finds what is in memory, goes on
// to the end, and then the power fails as badly as it can.
func dieAt(t *testing.T, f *faultfs.FS, versions []version, op faultfs.Op) {
	t.Parallel()
	l := lifeOn(t, f, versions)
	l.v.Plan(at(op, faultfs.ErrStop))
	l.note("died: %v", l.wholeLife())
	l.end()

	cut := *l // or the power fails at the same moment
	cut.told = maps.Clone(l.told)
	after := l.v.Survive(uint64(op.Nth))
	cut.start(after)
	cut.checkAfterCut()
	cut.end()
	after.Close()

	l.v.Restart()
	l.start(l.v)
	l.checkAfterCut()
	l.checkNothingIsLost()
}

// failAt lets op fail once. The process lives on and tries again.
func failAt(t *testing.T, f *faultfs.FS, versions []version, op faultfs.Op) {
	t.Parallel()
	errno := syscall.EIO
	if op.Nth%2 == 1 && op.Kind != "sync" {
		errno = syscall.ENOSPC
	}
	if op.Kind == "exchange" {
		errno = syscall.EINVAL // not every file system can do that
	}
	l := lifeOn(t, f, versions)
	l.v.Plan(at(op, errno))
	l.note("failed: %v", l.wholeLife())
	l.v.Plan(nil)
	if op.Kind == "rename" || op.Kind == "exchange" || op.Kind == "noreplace" || op.Kind == "sync" {
		// Removal may have been cut short: Lock puts it right, at the next start.
		l.end()
		l.start(l.v)
	}
	l.checkAfterCut()
	l.checkNothingIsLost()
}

// checkNothingIsLost cuts the power with the worst outcome and asserts that
// everything is there that had been told.
func (l *life) checkNothingIsLost() {
	l.t.Helper()
	l.end()
	after := l.v.SurviveNothing()
	l.v.Close()
	l.start(after)
	l.note("all that is not durable is gone")
	l.checkAfterCut()
	l.end()
	after.Close()
}
