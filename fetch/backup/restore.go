package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	// DefaultWorkers is Longhorn's default number of concurrent blocks.
	DefaultWorkers = 2
	// maxWorkers limits the memory: each worker has a block file in memory.
	maxWorkers = 8
	// decoders is the number of concurrent decompressions. A single goroutine hashes their output, and
	// two decoders are already faster than this goroutine.
	decoders = 2
	// encoders is the number of concurrent compressions.
	encoders = 2
	// prefetchBlocks is the number of blocks that may wait to be written, in addition to one for each
	// worker.
	prefetchBlocks = 2
	// maxBlockAttempts is the number of requests for a block file that is truncated or wrong.
	maxBlockAttempts = 3
)

func clampWorkers(n int) int {
	if n <= 0 {
		n = DefaultWorkers
	}
	return min(n, maxWorkers)
}

// Restore fills a partial file from a backup.
type Restore struct {
	Store          Store
	Backup         *Backup       // must be complete
	Workers        int           // concurrent requests; 0: DefaultWorkers
	BandwidthLimit int64         // bytes per second from the Store; 0: no limit
	Memory         *MemoryBudget // shared with other restores; nil: a budget for this restore
}

// Fill fills part with the image. It resumes at the end of part if its bytes are from the same
// backup. It returns when part has all bytes; the caller commits it. Fill verifies each block, and
// Part.Commit compares the digest of the image. Workers fetch blocks ahead, and Fill writes them in
// order. If the Store is writable, a lock prevents the deletion of the backup during the restore.
func (r Restore) Fill(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	lockCtx, lock, err := acquire(ctx, r.Store, shared, 0) // no delay, because every block is verified anyway
	switch {
	case err == nil:
		defer lock.release(ctx)
	case isClass(err, fetch.Refused, fetch.NoSpace):
		lockCtx = ctx // the Store is read-only
	default:
		return err
	}
	if err := r.begin(part); err != nil {
		return fetch.ClassifyDiskError(err)
	}
	progress.Total.Store(r.Backup.Size)
	progress.Resume(part.Offset())
	return fetch.ClassifyDiskError(withLostCause(ctx, lockCtx, r.writeBlocks(lockCtx, part, progress)))
}

// CanResume reports whether a partial file from this source is the beginning of the backup.
func (r Restore) CanResume(o disk.PartSource) bool { return o == r.partSource() }

func (r Restore) partSource() disk.PartSource {
	hash := sha256.Sum256([]byte(URL(r.Store.String(), r.Backup.Name)))
	source := disk.PartSource{
		ID: "backup " + hex.EncodeToString(hash[:]), ETag: r.Backup.fingerprint, Size: r.Backup.Size,
	}
	for _, b := range r.Backup.Blocks {
		source.Data += int64(r.Backup.length(b.Offset))
	}
	source.Data = max(source.Data, 512) // 0 would mean "unknown"
	return source
}

// begin discards the bytes in part unless they are from this backup.
func (r Restore) begin(part *disk.Part) error {
	source := r.partSource()
	if part.Source() == source && (part.Offset()%disk.ChunkSize == 0 || part.Offset() == r.Backup.Size) {
		return nil
	}
	return part.Begin(source)
}

// pendingBlock is a block that is being fetched or waits to be written.
type pendingBlock struct {
	block  Block
	buffer []byte        // from the MemoryBudget
	data   []byte        // the part of buffer that contains the block
	err    error         // set before ready is closed
	ready  chan struct{} // closed when data or err is set
}

// writeBlocks writes the blocks in order while workers fetch them.
func (r Restore) writeBlocks(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	if r.Memory == nil {
		r.Memory = NewMemoryBudget()
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	ahead := make(chan struct{}, clampWorkers(r.Workers)+prefetchBlocks)
	pieces := r.prefetch(ctx, &running, part.Offset(), ahead, progress)
	var last *pendingBlock // received, and not yet written
	defer func() {
		cancel()
		running.Wait() // after this, no worker writes to the buffers
		if last != nil {
			r.Memory.blocks.release(last.buffer)
		}
		for p := range pieces {
			r.Memory.blocks.release(p.buffer)
		}
	}()
	for last = range pieces {
		select {
		case <-last.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := cmp.Or(ctx.Err(), last.err); err != nil {
			return err
		}
		if err := appendBlock(part, last, progress); err != nil {
			return err
		}
		r.Memory.blocks.release(last.buffer)
		last = nil
		<-ahead
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return appendZeros(part, r.Backup.Size, progress)
}

// appendBlock appends a block. part may already contain the beginning of the block.
func appendBlock(part *disk.Part, p *pendingBlock, progress *fetch.Progress) error {
	if err := appendZeros(part, p.block.Offset, progress); err != nil {
		return err
	}
	n, err := part.ReadFrom(bytes.NewReader(p.data[part.Offset()-p.block.Offset:]))
	progress.Done.Add(n)
	return err
}

// appendZeros appends zeros up to end, as a hole.
func appendZeros(part *disk.Part, end int64, progress *fetch.Progress) error {
	for part.Offset() < end {
		n := min(disk.ChunkSize, end-part.Offset())
		if err := part.AppendZeros(n); err != nil {
			return err
		}
		progress.Done.Add(n)
	}
	return nil
}

// prefetch starts the workers. The returned channel contains the blocks in order, even if they are
// not ready yet. ahead has one element for each block that is not yet written.
func (r Restore) prefetch(ctx context.Context, running *sync.WaitGroup, from int64, ahead chan<- struct{}, progress *fetch.Progress) <-chan *pendingBlock {
	inOrder, todo := make(chan *pendingBlock, cap(ahead)), make(chan *pendingBlock)
	way := objectReader{fetch.NewLimiter(r.BandwidthLimit), &progress.UpstreamBytes}
	for range clampWorkers(r.Workers) {
		running.Go(func() {
			for p := range todo {
				var file []byte
				if file, p.err = r.Memory.files.acquire(ctx); p.err == nil {
					p.err = r.fetchBlock(ctx, p, way, file)
					r.Memory.files.release(file)
				}
				close(p.ready)
			}
		})
	}
	running.Go(func() {
		defer close(inOrder)
		defer close(todo)
		for _, block := range r.Backup.Blocks {
			length := r.Backup.length(block.Offset)
			if block.Offset+blockSize <= from || block.Offset+int64(length) <= from {
				continue
			}
			select {
			case ahead <- struct{}{}:
			case <-ctx.Done():
				return
			}
			buffer, err := r.Memory.blocks.acquire(ctx)
			if err != nil {
				return
			}
			p := &pendingBlock{block: block, buffer: buffer, data: buffer[:length], ready: make(chan struct{})}
			inOrder <- p // never blocks: its capacity is the maximum number of unwritten blocks
			select {
			case todo <- p:
			case <-ctx.Done():
				return
			}
		}
	})
	return inOrder
}

// fetchBlock fetches one block. It repeats the request if the file is truncated or wrong, because the
// network may have damaged it.
func (r Restore) fetchBlock(ctx context.Context, p *pendingBlock, way objectReader, stored []byte) error {
	var err error
	for range maxBlockAttempts {
		err = r.fetchBlockOnce(ctx, p, way, stored)
		if !isClass(err, fetch.Dropped, fetch.BadSource) {
			break
		}
	}
	return err
}

func (r Restore) fetchBlockOnce(ctx context.Context, p *pendingBlock, way objectReader, stored []byte) error {
	object, err := way.read(ctx, r.Store, p.block.ID.key(), stored)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r.blockError(fetch.Refused, p, "is missing")
	case errors.Is(err, errWrongBytes):
		return r.blockError(fetch.BadSource, p, "is damaged: "+err.Error())
	case err != nil:
		return err
	}
	decoder, err := r.Memory.decoders.acquire(ctx)
	if err != nil {
		return err
	}
	defer r.Memory.decoders.release(decoder)
	if err := decoder.decode(p.data, object, p.block.ID); err != nil {
		return r.blockError(fetch.BadSource, p, "is damaged: "+err.Error())
	}
	return nil
}

func (r Restore) blockError(class fetch.Class, p *pendingBlock, what string) error {
	return errorf(class, "block %s of backup %s in %s (at %d of %d bytes) %s",
		p.block.ID, r.Backup.Name, r.Store, p.block.Offset, r.Backup.Size, what)
}
