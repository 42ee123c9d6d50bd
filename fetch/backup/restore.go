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
	// DefaultWorkers is Longhorn's default for blocks that are moved at once.
	DefaultWorkers = 2
	// maxWorkers bounds the memory: each worker holds the file of a block.
	maxWorkers = 8
	// decoders is how many blocks are unpacked at once. What they give is hashed as a
	// whole by one goroutine, which is slower than two of them.
	decoders = 2
	// encoders is the same for what is packed.
	encoders = 2
	// prefetchBlocks is how many blocks may wait for their turn, besides those that are worked on.
	prefetchBlocks = 2
	// maxBlockAttempts is how often the file of a block is asked for that was cut or wrong.
	maxBlockAttempts = 3
)

func clampWorkers(n int) int {
	if n <= 0 {
		n = DefaultWorkers
	}
	return min(n, maxWorkers)
}

// Restore says which backup a part is made of, and how.
type Restore struct {
	Store          Store
	Backup         *Backup       // complete
	Workers        int           // blocks that are fetched at once; 0: DefaultWorkers
	BandwidthLimit int64         // most bytes per second from the Store; 0: no limit
	Memory         *MemoryBudget // shared with other restores; nil: one of its own
}

// Fill reads the image into part, from where the part ends if what it holds is of
// the same backup, and returns when part holds the whole. Each block is held against
// its sum; the digest of the whole is the part's to compare. Blocks are fetched
// ahead by Workers and written in order. Where the Store can be written to, a lock
// keeps others from deleting the backup meanwhile.
func (r Restore) Fill(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	held, lock, err := acquire(ctx, r.Store, shared, 0) // nothing has to settle: what is read is verified
	switch {
	case err == nil:
		defer lock.release(ctx)
	case isClass(err, fetch.Refused, fetch.NoSpace):
		held = ctx // the Store does not let us write
	default:
		return err
	}
	if err := r.begin(part); err != nil {
		return fetch.ClassifyDiskError(err)
	}
	progress.Total.Store(r.Backup.Size)
	progress.Done.Store(part.Offset())
	return fetch.ClassifyDiskError(withLostCause(ctx, held, r.writeBlocks(held, part, progress)))
}

// CanResume reports whether a part of this origin is the beginning of the backup.
func (r Restore) CanResume(o disk.PartSource) bool { return o == r.partSource() }

func (r Restore) partSource() disk.PartSource {
	source := sha256.Sum256([]byte(URL(r.Store.String(), r.Backup.Name)))
	origin := disk.PartSource{
		ID: "backup " + hex.EncodeToString(source[:]), ETag: r.Backup.fingerprint, Size: r.Backup.Size,
	}
	for _, b := range r.Backup.Blocks {
		origin.Data += int64(r.Backup.length(b.Offset))
	}
	origin.Data = max(origin.Data, 512) // 0 would say that it is not known
	return origin
}

// begin keeps what the part holds if that is of this backup.
func (r Restore) begin(part *disk.Part) error {
	origin := r.partSource()
	if part.Source() == origin && (part.Offset()%disk.ChunkSize == 0 || part.Offset() == r.Backup.Size) {
		return nil
	}
	return part.Begin(origin)
}

// pendingBlock is one block on its way.
type pendingBlock struct {
	block  Block
	buffer []byte        // of the MemoryBudget
	data   []byte        // the beginning of buffer, as long as the block
	err    error         // set before ready is closed
	ready  chan struct{} // closed when data or err is there
}

// writeBlocks writes the blocks in order, as they come from the workers.
func (r Restore) writeBlocks(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	if r.Memory == nil {
		r.Memory = NewMemoryBudget()
	}
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	ahead := make(chan struct{}, clampWorkers(r.Workers)+prefetchBlocks)
	pieces := r.prefetch(ctx, &running, part.Offset(), ahead, progress)
	var last *pendingBlock // in hand
	defer func() {
		cancel()
		running.Wait() // nobody writes to the buffers any more
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

// appendBlock appends a block, of which the part may hold the beginning already.
func appendBlock(part *disk.Part, p *pendingBlock, progress *fetch.Progress) error {
	if err := appendZeros(part, p.block.Offset, progress); err != nil {
		return err
	}
	n, err := part.ReadFrom(bytes.NewReader(p.data[part.Offset()-p.block.Offset:]))
	progress.Done.Add(n)
	return err
}

// appendZeros makes what is up to end a hole.
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

// prefetch starts the workers. The pieces come in the order of the image, and may
// not be ready yet; ahead has one for each that was not written.
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
			inOrder <- p // has room for as many as are not written
			select {
			case todo <- p:
			case <-ctx.Done():
				return
			}
		}
	})
	return inOrder
}

// fetchBlock gets one block, and asks again at once where it was cut or is not what
// its name says: something on the way may have done that.
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
