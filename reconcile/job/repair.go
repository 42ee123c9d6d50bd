package job

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// LocalCopy is a copy of the same bytes on another disk of this node.
type LocalCopy struct {
	Disk *disk.Disk
	ID   disk.ID
}

// repair puts right those chunks of a copy that are wrong or cannot be read: from other disks of
// this node, then from other nodes and the origin.
func (j Job) repair(ctx context.Context, id disk.ID) error {
	far, done := j.newPull()
	defer done()
	j.Progress.Total.Store(j.Action.Bytes)
	size := j.Disk.Stat(id).Size
	fromFar := far.ChunkFetcher(size)
	_, err := j.Disk.Repair(ctx, id, j.Peers.Digest, func(ctx context.Context, n int64, sum disk.ChunkHash, buf []byte) (int, error) {
		for _, c := range j.LocalCopies {
			if length, err := c.chunk(n, sum, buf); err == nil {
				return length, nil
			}
		}
		if len(j.Peers.Sources()) == 0 { // nobody who may be busy and is worth waiting for
			return j.upstreamChunk(ctx, far.Upstream, size, n, sum, buf)
		}
		return fromFar(ctx, n, sum, buf)
	}, func(n int64) { j.Progress.Done.Add(n) })
	return err
}

// rewriteUnreadable has those chunks of a ready copy written anew that its disk could not read, which
// the disk may do in another place. Where that cannot be done the copy is what it was.
func (j Job) rewriteUnreadable(ctx context.Context, id disk.ID, unread error) error {
	j.Progress.Done.Store(0)
	err := j.repair(ctx, id)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return fmt.Errorf("%w; nor could it be repaired: %v", unread, err)
}

// upstreamChunk asks the origin alone, and once.
func (j Job) upstreamChunk(ctx context.Context, origin *fetch.RangeReader, size, n int64, sum disk.ChunkHash, buf []byte) (int, error) {
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
	j.Progress.UpstreamBytes.Add(int64(read))
	if err != nil {
		return 0, fetch.ClassifyDiskError(err)
	}
	if disk.HashChunk(data) != sum {
		return 0, &fetch.Error{Class: fetch.BadSource, Err: errOtherChunk}
	}
	return len(data), nil
}

var errOtherChunk = errors.New("the chunk is another one there")

func (c LocalCopy) chunk(n int64, sum disk.ChunkHash, buf []byte) (int, error) {
	r, err := c.Disk.Open(c.ID)
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
	if disk.HashChunk(buf[:length]) != sum {
		return 0, errOtherChunk
	}
	return length, nil
}
