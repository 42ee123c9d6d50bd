package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

const (
	// DefaultWorkers is Longhorn's default number of concurrent blocks.
	DefaultWorkers = 2
	// maxWorkers limits the memory: each worker has a block file in memory.
	maxWorkers = 8
	// decoders is the number of blocks that a backup reads back and unpacks at a time.
	decoders = 2
	// encoders is the number of concurrent compressions.
	encoders = 2
	// prefetchBlocks is the number of blocks that may wait to be written, in addition to one block for
	// each worker. The window of the assembly has room for these blocks.
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

// CanResume reports whether a partial file from source o is the beginning of this image.
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

// writeBlocks writes the blocks in order, while workers fetch later blocks.
func (r Restore) writeBlocks(ctx context.Context, part *disk.Part, progress *fetch.Progress) error {
	if r.Memory == nil {
		r.Memory = NewMemoryBudget()
	}
	r.Memory.restores.Add(1)
	defer r.Memory.restores.Add(-1)
	workers, reader := clampWorkers(r.Workers), objectReader{fetch.NewLimiter(r.BandwidthLimit), &progress.UpstreamBytes}
	store := assemble.Candidate{
		Name: r.Store.String(), Limits: func() (requests int, length int64) { return workers, 0 }, // a block at a time
		Provider: assemble.Open(func(ctx context.Context, from, _ int64) (io.ReadCloser, error) {
			n, _ := r.find(from / blockSize)
			return r.fetchBlock(ctx, r.Backup.Blocks[n], reader)
		}),
	}
	a := assemble.Assembly{
		Plan: assemble.Blocks(r.Backup.Size, blockSize, func(n int64) bool { _, has := r.find(n); return has }), Sink: part,
		Candidates: func() []assemble.Candidate { return []assemble.Candidate{store} }, Health: new(assemble.Health),
		Window:   func() int64 { return r.Memory.window(workers + prefetchBlocks) },
		Failed:   func(_ assemble.Candidate, err error) error { return err }, // the request was already repeated, by Store and fetchBlock
		Progress: progress,
	}
	return a.Run(ctx, part.Offset())
}

// find returns the index in Backup.Blocks of the n-th block of the image. found is false if that block is all zeros.
func (r Restore) find(n int64) (index int, found bool) {
	return slices.BinarySearchFunc(r.Backup.Blocks, n*blockSize, func(b Block, offset int64) int { return cmp.Compare(b.Offset, offset) })
}

// fetchBlock returns the bytes of a block, verified. It repeats the request if the file is truncated or wrong, because the
// network may have damaged it.
func (r Restore) fetchBlock(ctx context.Context, block Block, from objectReader) (io.ReadCloser, error) {
	reader, err := r.Memory.readers.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Memory.readers.release(reader)
	data := make([]byte, r.Backup.length(block.Offset))
	for range maxBlockAttempts {
		err = r.fetchBlockOnce(ctx, block, from, reader, data)
		if !isClass(err, fetch.Dropped, fetch.BadSource) {
			break
		}
	}
	return io.NopCloser(bytes.NewReader(data)), err
}

func (r Restore) fetchBlockOnce(ctx context.Context, block Block, from objectReader, reader *blockReader, data []byte) error {
	object, err := from.read(ctx, r.Store, block.ID.key(), reader.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return r.blockError(fetch.Refused, block, "is missing")
	case err == nil:
		err = reader.decoder.decode(data, object, block.ID)
	case !errors.Is(err, errWrongBytes):
		return err
	}
	if err != nil {
		return r.blockError(fetch.BadSource, block, "is damaged: "+err.Error())
	}
	return nil
}

func (r Restore) blockError(class fetch.Class, block Block, what string) error {
	return fetch.Errorf(class, "block %s of backup %s in %s (at %d of %d bytes) %s",
		block.ID, r.Backup.Name, r.Store, block.Offset, r.Backup.Size, what)
}
