package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// image is a ready copy that is backed up.
type image struct {
	disk.Copy
	*disk.Reader
	manifest *disk.Manifest
}

func openImage(d *disk.Disk, id disk.ID) (*image, error) {
	r, err := d.Open(id)
	if err != nil {
		return nil, err
	}
	m, err := d.Manifest(id)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("back up %s: %w", id, err), r.Close())
	}
	im := &image{d.Look(id), r, m}
	if im.SHA512.IsZero() || im.Copy.Size != m.Size() || im.Copy.Size != r.Size() {
		im.close()
		return nil, fmt.Errorf("back up %s: %w", id, disk.ErrChanging)
	}
	return im, nil
}

// close gives up what was only read.
func (im *image) close() {
	_ = im.manifest.Close()
	_ = im.Reader.Close()
}

func (im *image) length(offset int64) int { return int(min(BlockSize, im.manifest.Size()-offset)) }

// chunks are the numbers of the first chunk of a block, and of the one behind its last.
func (im *image) chunks(offset int64) (first, end int64) {
	first = offset / disk.ChunkSize
	return first, min(first+BlockSize/disk.ChunkSize, im.manifest.Chunks())
}

// blocks lists the blocks of the image, without sums: of a qcow2 image all, of a raw
// one those that have anything but zeros.
func (im *image) blocks() ([]Block, error) {
	var blocks []Block
	for offset := int64(0); offset < im.manifest.Size(); offset += BlockSize {
		empty := im.Format != disk.QCOW2
		for n, end := im.chunks(offset); n < end && empty; n++ {
			var err error
			if empty, err = im.manifest.Zero(n); err != nil {
				return nil, err
			}
		}
		if !empty {
			blocks = append(blocks, Block{Offset: offset})
		}
	}
	return blocks, nil
}

// loaded is a block on its way into the Store.
type loaded struct {
	*Block
	data []byte
}

// readAll reads the blocks in order.
func (im *image) readAll(ctx context.Context, blocks []Block, free <-chan []byte, out chan<- loaded) error {
	for i := range blocks {
		l := loaded{Block: &blocks[i]}
		select {
		case l.data = <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		if l.data == nil {
			l.data = make([]byte, BlockSize)
		}
		l.data = l.data[:im.length(l.Offset)]
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
func (im *image) verify(l loaded) error {
	data := l.data
	for n, end := im.chunks(l.Offset); n < end; n++ {
		length := im.manifest.Length(n)
		want, err := im.manifest.At(n)
		if err != nil {
			return err
		}
		if disk.SumChunk(data[:length]) != want {
			return fmt.Errorf("%s %w at %d: verify it", im.ID, disk.ErrDamaged, n*disk.ChunkSize)
		}
		data = data[length:]
	}
	return nil
}

// keeper stores one block after the other.
type keeper struct {
	store    Store
	image    *image
	packers  chan *encoder
	readers  chan *reader
	packed   bytes.Buffer
	progress *fetch.Progress
}

// keep stores a block unless it is there, and sets its sum.
func (k *keeper) keep(ctx context.Context, l loaded) error {
	if err := k.image.verify(l); err != nil {
		return err
	}
	l.Sum = SumBlock(l.data)
	if err := k.put(ctx, l); err != nil {
		return fmt.Errorf("store block at %d: %w", l.Offset, err)
	}
	k.progress.Done.Add(int64(len(l.data)))
	return nil
}

// put stores a block unless it is there and good.
func (k *keeper) put(ctx context.Context, l loaded) error {
	packer := <-k.packers
	file, err := packer.encode(l.data, &k.packed)
	k.packers <- packer
	if err != nil {
		return err
	}
	if good, err := k.there(ctx, l, len(file)); err != nil || good {
		return err
	}
	if err := k.store.Put(ctx, l.Sum.key(), file); err != nil {
		return err
	}
	k.progress.Moved.Add(int64(len(file)))
	return nil
}
