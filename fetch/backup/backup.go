package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Creator creates backups in a Store.
type Creator struct {
	Store       Store
	Compression Compression
	Workers     int               // concurrent requests; 0: DefaultWorkers
	Labels      map[string]string // stored with the backup
}

// Create backs up the ready copy with this id on d, under the name of the image. It does not store
// blocks again that are already in the Store, except damaged ones. If the Store already has a backup
// with this name:
//
//	the same bytes, complete     Create does nothing
//	the same bytes, incomplete   Create completes it
//	different bytes              error of class fetch.BadSource
//
// Create compares each chunk with the manifest of the copy. disk.ErrNoManifest and disk.ErrDamaged
// mean that the copy must be verified first. After an interruption, the stored blocks and an
// incomplete cfg remain, and the next Create resumes.
func (w Creator) Create(ctx context.Context, d *disk.Disk, id ident.ID, progress *fetch.Progress) error {
	im, err := openSourceImage(d, id)
	if err != nil {
		return err
	}
	defer im.close()
	progress.Total.Store(im.Copy.Size)
	if b, err := w.existing(ctx, im.Copy); err != nil || b.Complete() {
		progress.Done.Store(im.Copy.Size)
		return err
	}
	return withLock(ctx, w.Store, shared, func(ctx context.Context, l *lock) error {
		b, err := w.existing(ctx, im.Copy)
		if err != nil || b.Complete() {
			return err
		}
		if err := w.writeCfg(ctx, b); err != nil {
			return err
		}
		if b.Blocks, err = w.storeBlocks(ctx, im, progress); err != nil {
			return err
		}
		if err := im.Unchanged(); err != nil {
			return err
		}
		// Another process with a shared lock may have completed the backup meanwhile.
		if now, err := w.existing(ctx, im.Copy); err != nil || now.Complete() {
			return err
		}
		// If the lock was lost, a deletion may have removed blocks that no cfg names yet.
		if err := l.confirm(ctx); err != nil {
			return err
		}
		b.Completed = time.Now()
		return w.writeCfg(ctx, b)
	})
}

// existing returns the backup in the Store, complete or not, or a new backup if the Store has none.
func (w Creator) existing(ctx context.Context, c model.Copy) (*Backup, error) {
	want := &Backup{
		Name: c.ID.Name, Size: c.Size, Checksum: c.SHA512.String(), Labels: w.Labels, Compression: w.Compression,
		Created: time.Now(),
	}
	have, err := Load(ctx, w.Store, want.Name)
	switch {
	case isClass(err, fetch.BadSource):
		return nil, fetch.Errorf(fetch.BadSource, "%w: delete this backup first, because backups are not replaced", err)
	case err != nil:
		return nil, err
	case have == nil:
		return want, want.validate()
	case have.Digest() != c.SHA512 || have.Size != c.Size:
		return nil, fetch.Errorf(fetch.BadSource, "%s has a backup %s of different bytes (%d, sha512 %.16s…): delete it first, or back up an image of another name",
			w.Store, want.Name, have.Size, have.Checksum)
	case have.Complete():
		return have, nil
	}
	want.Created = have.Created
	return want, nil
}

func (w Creator) writeCfg(ctx context.Context, b *Backup) error {
	data, err := b.marshal()
	if err != nil {
		return err
	}
	if err := w.Store.Put(ctx, cfgKey(b.Name), data); err != nil {
		return fmt.Errorf("write %s of backup %s: %w", cfgName, b.Name, err)
	}
	return nil
}

// storeBlocks stores all blocks of the image.
func (w Creator) storeBlocks(ctx context.Context, im *sourceImage, progress *fetch.Progress) ([]Block, error) {
	blocks, err := im.blocks()
	if err != nil {
		return nil, err
	}
	zeros := im.Copy.Size // the bytes outside of the blocks
	for _, b := range blocks {
		zeros -= int64(im.length(b.Offset))
	}
	progress.Resume(zeros)
	packers := newPool(encoders, func() *encoder { return newEncoder(w.Compression) })
	readers := newPool(decoders, newBlockReader)
	each := func(yield func(*Block) bool) {
		for i := range blocks {
			if !yield(&blocks[i]) {
				return
			}
		}
	}
	return blocks, InParallel(ctx, clampWorkers(w.Workers), each, func() func(context.Context, *Block) error {
		k := blockWriter{store: w.Store, image: im, packers: packers, readers: readers, buffer: make([]byte, blockSize), progress: progress}
		return k.write
	})
}

// InParallel passes the items to workers, one item at a time. The first error ends all.
func InParallel[T any](ctx context.Context, workers int, items iter.Seq[T], worker func() func(context.Context, T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	todo := make(chan T)
	group.Go(func() error {
		defer close(todo)
		for item := range items {
			select {
			case todo <- item:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range workers {
		group.Go(func() error {
			work := worker()
			for item := range todo {
				if err := work(ctx, item); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// sourceImage is the ready copy that Create reads.
type sourceImage struct {
	model.Copy
	*disk.Reader
	manifest *disk.Manifest
}

func openSourceImage(d *disk.Disk, id ident.ID) (*sourceImage, error) {
	r, err := d.Open(id)
	if err != nil {
		return nil, err
	}
	m, err := d.Manifest(id)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("back up %s: %w", id, err), r.Close())
	}
	im := &sourceImage{d.Stat(id), r, m}
	if im.SHA512.IsZero() || im.Copy.Size != m.Size() || im.Copy.Size != r.Size() {
		im.close()
		return nil, fmt.Errorf("back up %s: %w", id, disk.ErrModified)
	}
	return im, nil
}

// close closes the files. Errors are ignored, because the files were only read.
func (im *sourceImage) close() {
	_ = im.manifest.Close()
	_ = im.Reader.Close()
}

func (im *sourceImage) length(offset int64) int {
	return int(min(blockSize, im.manifest.Size()-offset))
}

// chunks returns the numbers of the first chunk of a block, and of the first chunk after the block.
func (im *sourceImage) chunks(offset int64) (first, end int64) {
	first = offset / disk.ChunkSize
	return first, min(first+blockSize/disk.ChunkSize, im.manifest.Chunks())
}

// blocks returns the blocks of the image, without ids: all blocks of a qcow2 image, and those blocks of a raw image
// that are not all zeros.
func (im *sourceImage) blocks() ([]Block, error) {
	var blocks []Block
	for offset := int64(0); offset < im.manifest.Size(); offset += blockSize {
		empty := im.Format != model.QCOW2
		for n, end := im.chunks(offset); n < end && empty; n++ {
			var err error
			if empty, err = im.manifest.IsZero(n); err != nil {
				return nil, err
			}
		}
		if !empty {
			blocks = append(blocks, Block{Offset: offset})
		}
	}
	return blocks, nil
}

// read reads a block, and compares it with the manifest, so that damaged bytes of the disk are not stored.
func (im *sourceImage) read(block []byte, offset int64) error {
	if _, err := im.ReadAt(block, offset); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read %s: %w", im.ID, err)
	}
	for n, end := im.chunks(offset); n < end; n++ {
		length := im.manifest.ChunkLength(n)
		want, err := im.manifest.Hash(n)
		if err != nil {
			return err
		}
		if !want.Matches(block[:length]) {
			return fmt.Errorf("%s %w at %d: verify it", im.ID, disk.ErrDamaged, n*disk.ChunkSize)
		}
		block = block[length:]
	}
	return nil
}

// blockWriter stores one block at a time.
type blockWriter struct {
	store    Store
	image    *sourceImage
	packers  *pool[*encoder]
	readers  *pool[*blockReader]
	buffer   []byte
	packed   bytes.Buffer
	progress *fetch.Progress
}

// write sets the id of a block and stores the block, unless the Store already has it.
func (k *blockWriter) write(ctx context.Context, b *Block) error {
	data := k.buffer[:k.image.length(b.Offset)]
	if err := k.image.read(data, b.Offset); err != nil {
		return err
	}
	b.ID = blockIDOf(data)
	if err := k.put(ctx, b.ID, data); err != nil {
		return fmt.Errorf("store block at %d: %w", b.Offset, err)
	}
	k.progress.Done.Add(int64(len(data)))
	return nil
}

// put stores a block, unless the Store already has it undamaged.
func (k *blockWriter) put(ctx context.Context, id blockID, block []byte) error {
	packer, err := k.packers.acquire(ctx)
	if err != nil {
		return err
	}
	file, err := packer.encode(block, &k.packed)
	k.packers.release(packer)
	if err != nil {
		return err
	}
	if good, err := k.isStored(ctx, id, block, len(file)); err != nil || good {
		return err
	}
	if err := k.store.Put(ctx, id.key(), file); err != nil {
		return err
	}
	k.progress.UpstreamBytes.Add(int64(len(file)))
	return nil
}

// blockReader reads blocks. It reuses its buffers.
type blockReader struct {
	decoder *decoder
	file    []byte
	block   []byte // of a block that is read back; nil: not needed yet
}

func newBlockReader() *blockReader {
	return &blockReader{decoder: newDecoder(), file: make([]byte, maxBlockFile+1)}
}

// isStored reports whether the Store has the block undamaged. size is the size of the block file that this process
// would write. Another backup, or an interrupted Create, may have stored the block. A restore (also by Longhorn) verifies
// each block, but it would find the damage when the image may not exist anywhere else. Create therefore checks a stored
// block while the right bytes are available, and replaces it if it is damaged. This repairs all backups that share the
// block.
func (k *blockWriter) isStored(ctx context.Context, id blockID, block []byte, size int) (bool, error) {
	return IsStored(ctx, k.store, id.key(), func() int64 { return int64(size) }, func(object io.Reader) (bool, error) {
		r, err := k.readers.acquire(ctx)
		if err != nil {
			return false, err
		}
		defer k.readers.release(r)
		n, err := io.ReadFull(object, r.file)
		if err != io.ErrUnexpectedEOF && err != io.EOF {
			return false, err // nil: the object is too long
		}
		if r.block == nil {
			r.block = make([]byte, blockSize)
		}
		return r.decoder.decode(r.block[:len(block)], r.file[:n], id) == nil, nil
	})
}
