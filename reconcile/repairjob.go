package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// nearCopy is a copy of the same bytes on another disk of this node.
type nearCopy struct {
	disk *disk.Disk
	id   disk.ID
}

// near lists what can be repaired from without asking anybody.
func (r *Reconciler) near(d Desired, o Observed, a Action) []nearCopy {
	if a.Kind != Repair && a.Kind != Verify {
		return nil
	}
	var near []nearCopy
	want := d.bytesOf(o, a)
	for _, ref := range slices.SortedFunc(maps.Keys(r.disks.open), compareRefs) {
		for id, c := range o.Disks[ref].Copies {
			if c.HasDigest(want) && !c.Leaving && (Key{ref, id}) != a.Key() {
				near = append(near, nearCopy{r.disks.open[ref].Disk, id})
			}
		}
	}
	return near
}

// repair puts right those chunks of a copy that are wrong or cannot be read: from other disks of
// this node, then from other nodes and the origin.
func (j job) repair(ctx context.Context, id disk.ID) error {
	far, done := j.puller()
	defer done()
	j.progress.Total.Store(j.action.Bytes)
	size := j.disk.Stat(id).Size
	fromFar := far.ChunkFetcher(size)
	_, err := j.disk.Repair(ctx, id, j.far.want, func(ctx context.Context, n int64, sum disk.ChunkHash, buf []byte) (int, error) {
		for _, c := range j.near {
			if length, err := c.chunk(n, sum, buf); err == nil {
				return length, nil
			}
		}
		if len(j.far.sources()) == 0 { // nobody who may be busy and is worth waiting for
			return j.originChunk(ctx, far.Upstream, size, n, sum, buf)
		}
		return fromFar(ctx, n, sum, buf)
	}, func(n int64) { j.progress.Done.Add(n) })
	return err
}

// mend has those chunks of a ready copy written anew that its disk could not read, which
// the disk may do in another place. Where that cannot be done the copy is what it was.
func (j job) mend(ctx context.Context, id disk.ID, unread error) error {
	j.progress.Done.Store(0)
	err := j.repair(ctx, id)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w; nor could it be repaired: %v", unread, err)
}

// originChunk asks the origin alone, and once.
func (j job) originChunk(ctx context.Context, origin *fetch.RangeReader, size, n int64, sum disk.ChunkHash, buf []byte) (int, error) {
	if origin == nil {
		return 0, errNoSource
	}
	from := n * disk.ChunkSize
	data := buf[:min(disk.ChunkSize, size-from)]
	body, err := origin.Open(ctx, from, from+int64(len(data)))
	if err != nil {
		return 0, fetch.ClassifyDiskError(err)
	}
	defer body.Close()
	read, err := io.ReadFull(body, data)
	j.progress.UpstreamBytes.Add(int64(read))
	if err != nil {
		return 0, fetch.ClassifyDiskError(err)
	}
	if disk.HashChunk(data) != sum {
		return 0, &fetch.Error{Class: fetch.BadSource, Err: errOther}
	}
	return len(data), nil
}

var errOther = errors.New("the chunk is another one there")

func (c nearCopy) chunk(n int64, sum disk.ChunkHash, buf []byte) (int, error) {
	r, err := c.disk.Open(c.id)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	from := n * disk.ChunkSize
	if from >= r.Size() {
		return 0, errOther
	}
	length, err := r.ReadAt(buf[:min(int64(len(buf)), r.Size()-from)], from)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	if disk.HashChunk(buf[:length]) != sum {
		return 0, errOther
	}
	return length, nil
}
