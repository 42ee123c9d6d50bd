package job

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// verify reads the whole copy and compares its digest. Disk.Verify records the outcome: a mismatch
// is no error of the job. A ready copy with sectors that cannot be read is repaired at once.
func (j Job) verify(ctx context.Context, id ident.ID) error {
	if j.Disk.Stat(id).State == model.Ready && j.Action.Op == model.Adopt {
		return j.Disk.WriteCfg(id, j.Image.Checksum) // the record is valid, only backing.cfg is not: no read is needed
	}
	j.Progress.Total.Store(j.Action.Bytes)
	pace := rate.NewLimiter(rate.Inf, 0)
	if j.Action.Scrub {
		pace = rate.NewLimiter(plan.ScrubRate, plan.ScrubRate)
	}
	want := disk.Expected{Digest: j.Image.Checksum, Format: model.Format(j.Image.Format)}
	if id != j.Image.ID {
		want = disk.Expected{Digest: j.Disk.Stat(id).CfgExpected} // as it was declared for this generation
	}
	_, err := j.Disk.Verify(ctx, id, want,
		func(n int64) {
			j.Progress.Done.Add(n)
			_ = pace.WaitN(ctx, int(n)) // fails only when ctx ends, and then Verify fails too
		})
	if disk.IsMediaError(err) && id == j.Image.ID && j.Disk.Stat(id).State == model.Ready {
		return j.rewriteUnreadable(ctx, id, err)
	}
	return err
}

// rewriteUnreadable rewrites those chunks of a ready copy that its disk could not read: the disk may remap the sectors
// then. If that fails, the error has both reasons. The copy stays as it was, unless it turned out to be damaged.
func (j Job) rewriteUnreadable(ctx context.Context, id ident.ID, readErr error) error {
	j.Progress.Done.Store(0)
	err := j.repair(ctx, id)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w; the repair failed: %v", readErr, err)
}

// repair rewrites the chunks of a copy that are wrong or cannot be read. It takes each from the
// first source that has it: other copies on this node, or else other nodes and the upstream.
func (j Job) repair(ctx context.Context, id ident.ID) error {
	pull, done := j.newPull()
	defer done()
	j.Progress.Total.Store(j.Action.Bytes)
	remote := pull.ChunkFetcher(j.Disk.Stat(id).Size)
	want := j.Digest
	if want.IsZero() && id == j.Image.ID {
		want = j.Image.Checksum // the repair reads another disk of this node, and no peers
	}
	_, err := j.Disk.Repair(ctx, id, want, func(ctx context.Context, n int64, sum disk.ChunkHash, buf []byte) (int, error) {
		for _, c := range j.LocalCopies {
			if length, err := readChunk(j.Disks[c.Disk.Disk], c.ID, n, sum, buf); err == nil {
				return length, nil
			}
		}
		if len(j.PeerCopies()) == 0 && len(pull.Upstream) == 0 {
			return 0, errNoSource // a pull would wait for a source
		}
		return remote(ctx, n, sum, buf)
	}, func(n int64) { j.Progress.Done.Add(n) })
	return withWrongSources(err, pull)
}

// errOtherChunk: the local copy has other bytes by now.
var errOtherChunk = errors.New("the copy has other bytes in this chunk")

// readChunk reads chunk n of a copy on a disk into buf, and returns its length. It fails unless sum is the
// hash of the chunk.
func readChunk(on *disk.Disk, id ident.ID, n int64, sum disk.ChunkHash, buf []byte) (int, error) {
	r, err := on.Open(id)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	from := n * disk.ChunkSize
	if from >= r.Size() {
		return 0, errOtherChunk
	}
	length, err := r.ReadAt(buf[:min(int64(len(buf)), r.Size()-from)], from)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if !sum.Matches(buf[:length]) {
		return 0, errOtherChunk
	}
	return length, nil
}
