package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Creator says where images are backed up to, and how.
type Creator struct {
	Store       Store
	Compression Compression
	Workers     int               // blocks that are stored at once; 0: DefaultWorkers
	Labels      map[string]string // kept with the backup
}

// Create stores the ready copy id of d under its name. Blocks that the Store has
// are not stored again, but for those that are found bad. A backup of the same bytes
// that is there is left as it is; one that was not completed is completed; one of
// other bytes is refused. What is read is held against the copy's manifest: disk.ErrNoManifest and disk.ErrDamaged say that
// the copy has to be verified first. Cancelled or killed, it leaves blocks and a cfg that says
// that it is not complete, and the next Backup of the image goes on from there.
func (w Creator) Create(ctx context.Context, d *disk.Disk, id disk.ID, progress *fetch.Progress) error {
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
		// Others may hold the same lock, and have begun at the same moment.
		if now, err := w.existing(ctx, im.Copy); err != nil || now.Complete() {
			return err
		}
		// Without the lock, somebody may have removed blocks that are not in any cfg yet.
		if err := l.confirm(ctx); err != nil {
			return err
		}
		b.Completed = time.Now()
		return w.writeCfg(ctx, b)
	})
}

// existing returns the backup that is to be made: as it is in the Store, complete or
// not, or a new one.
func (w Creator) existing(ctx context.Context, c disk.Copy) (*Backup, error) {
	want := &Backup{
		Name: c.ID.Name, Size: c.Size, Checksum: c.SHA512.String(), Labels: w.Labels, Compression: w.Compression,
		Created: time.Now(),
	}
	have, err := Load(ctx, w.Store, want.Name)
	switch {
	case isClass(err, fetch.BadSource):
		return nil, errorf(fetch.BadSource, "%w: nothing is written over it, so delete it first", err)
	case err != nil:
		return nil, err
	case have == nil:
		return want, want.validate()
	case have.Digest() != c.SHA512 || have.Size != c.Size:
		return nil, errorf(fetch.BadSource, "%s has a backup %s of other bytes (%d, sha512 %.16s…): delete it first, or back up an image of another name",
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

// storeBlocks brings all blocks of the image into the Store: one goroutine reads ahead
// of the workers.
func (w Creator) storeBlocks(ctx context.Context, im *sourceImage, progress *fetch.Progress) ([]Block, error) {
	blocks, err := im.blocks()
	if err != nil {
		return nil, err
	}
	progress.Done.Store(im.Copy.Size)
	for _, b := range blocks {
		progress.Done.Add(-int64(im.length(b.Offset)))
	}
	packers := newPool(encoders, func() *encoder { return newEncoder(w.Compression) })
	readers := newPool(decoders, newBlockReader)
	buffers := newPool(int64(clampWorkers(w.Workers)+1), func() []byte { return make([]byte, blockSize) })
	group, ctx := errgroup.WithContext(ctx)
	todo := make(chan readBlock)
	group.Go(func() error {
		defer close(todo)
		return im.readBlocks(ctx, blocks, buffers, todo)
	})
	for range clampWorkers(w.Workers) {
		group.Go(func() error {
			k := blockWriter{store: w.Store, image: im, packers: packers, readers: readers, progress: progress}
			for l := range todo {
				if err := k.write(ctx, l); err != nil {
					return err
				}
				buffers.release(l.buffer)
			}
			return nil
		})
	}
	return blocks, group.Wait()
}

// sourceImage is a ready copy that is backed up.
type sourceImage struct {
	disk.Copy
	*disk.Reader
	manifest *disk.Manifest
}

func openSourceImage(d *disk.Disk, id disk.ID) (*sourceImage, error) {
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

// close gives up what was only read.
func (im *sourceImage) close() {
	_ = im.manifest.Close()
	_ = im.Reader.Close()
}

func (im *sourceImage) length(offset int64) int {
	return int(min(blockSize, im.manifest.Size()-offset))
}

// chunks are the numbers of the first chunk of a block, and of the one behind its last.
func (im *sourceImage) chunks(offset int64) (first, end int64) {
	first = offset / disk.ChunkSize
	return first, min(first+blockSize/disk.ChunkSize, im.manifest.Chunks())
}

// blocks lists the blocks of the image, without sums: of a qcow2 image all, of a raw
// one those that have anything but zeros.
func (im *sourceImage) blocks() ([]Block, error) {
	var blocks []Block
	for offset := int64(0); offset < im.manifest.Size(); offset += blockSize {
		empty := im.Format != disk.QCOW2
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

// readBlock is a block on its way into the Store.
type readBlock struct {
	*Block
	buffer []byte // of a pool
	data   []byte // the beginning of buffer, as long as the block
}

// readBlocks reads the blocks in order.
func (im *sourceImage) readBlocks(ctx context.Context, blocks []Block, buffers *pool[[]byte], out chan<- readBlock) error {
	for i := range blocks {
		l := readBlock{Block: &blocks[i]}
		var err error
		if l.buffer, err = buffers.acquire(ctx); err != nil {
			return err
		}
		l.data = l.buffer[:im.length(l.Offset)]
		if _, err := im.ReadAt(l.data, l.Offset); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", im.ID, err)
		}
		select {
		case out <- l:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// verify holds what was read of a block against the manifest, so that what the disk
// has spoiled does not get a place in the Store.
func (im *sourceImage) verify(l readBlock) error {
	data := l.data
	for n, end := im.chunks(l.Offset); n < end; n++ {
		length := im.manifest.ChunkLength(n)
		want, err := im.manifest.Hash(n)
		if err != nil {
			return err
		}
		if disk.HashChunk(data[:length]) != want {
			return fmt.Errorf("%s %w at %d: verify it", im.ID, disk.ErrDamaged, n*disk.ChunkSize)
		}
		data = data[length:]
	}
	return nil
}

// blockWriter stores one block after the other.
type blockWriter struct {
	store    Store
	image    *sourceImage
	packers  *pool[*encoder]
	readers  *pool[*blockReader]
	packed   bytes.Buffer
	progress *fetch.Progress
}

// write stores a block unless it is there, and sets its sum.
func (k *blockWriter) write(ctx context.Context, l readBlock) error {
	if err := k.image.verify(l); err != nil {
		return err
	}
	l.ID = blockIDOf(l.data)
	if err := k.put(ctx, l); err != nil {
		return fmt.Errorf("store block at %d: %w", l.Offset, err)
	}
	k.progress.Done.Add(int64(len(l.data)))
	return nil
}

// put stores a block unless it is there and good.
func (k *blockWriter) put(ctx context.Context, l readBlock) error {
	packer, err := k.packers.acquire(ctx)
	if err != nil {
		return err
	}
	file, err := packer.encode(l.data, &k.packed)
	k.packers.release(packer)
	if err != nil {
		return err
	}
	if good, err := k.isStored(ctx, l, len(file)); err != nil || good {
		return err
	}
	if err := k.store.Put(ctx, l.ID.key(), file); err != nil {
		return err
	}
	k.progress.UpstreamBytes.Add(int64(len(file)))
	return nil
}

// A block that is there already, of another backup or of this one before it was killed,
// becomes part of a backup that calls itself complete. Whoever restores that verifies
// each block, Longhorn too, and finds a bad one when there may be nothing else left to
// restore from. So it is looked at while the right bytes are at hand, and written anew
// if it is bad, which mends all backups that share it.
//
//	a folder    is read back: a disk or a share may have cut or spoilt it, and reading
//	            costs no more than writing it would have
//	a bucket    has written it whole or not at all, with a checksum of its own: it is
//	            read back only if it has not the size that it would have from us

// blockReader reads blocks back. Its memory is used again and again.
type blockReader struct {
	decoder *decoder
	file    []byte
	block   []byte
}

func newBlockReader() *blockReader {
	return &blockReader{newDecoder(), make([]byte, maxBlockFile+1), make([]byte, blockSize)}
}

// isStored reports whether the Store has the block, as good as a file of size bytes.
func (k *blockWriter) isStored(ctx context.Context, l readBlock, size int) (bool, error) {
	has, err := storedSize(ctx, k.store, l.ID)
	if err != nil || has <= 0 || has > maxBlockFile {
		return false, err
	}
	if !isFolder(k.store) && has == int64(size) {
		return true, nil
	}
	r, err := k.readers.acquire(ctx)
	if err != nil {
		return false, err
	}
	defer k.readers.release(r)
	file, err := (objectReader{nil, new(atomic.Int64)}).read(ctx, k.store, l.ID.key(), r.file)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errWrongBytes):
		return false, nil
	case err != nil:
		return false, err
	}
	return r.decoder.decode(r.block[:len(l.data)], file, l.ID) == nil, nil
}

// isFolder reports whether the files of a Store are on a file system.
func isFolder(s Store) bool {
	if p, ok := s.(retryStore); ok {
		s = p.Store
	}
	_, ok := s.(*folder)
	return ok
}

// storedSize returns how many bytes the Store has of a block; 0: it has none.
func storedSize(ctx context.Context, s Store, sum blockID) (int64, error) {
	entries, err := s.List(ctx, sum.folder())
	if err != nil {
		return 0, err
	}
	name := path.Base(sum.key())
	for _, e := range entries {
		if e.Name == name && !e.Dir {
			return e.Size, nil
		}
	}
	return 0, nil
}
