package publish

import (
	"context"
	"fmt"
	"io"
	"path"
	"sync/atomic"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
)

// DefaultWorkers is the default number of chunks that are written at a time. Chunks are small, so most
// of the time is spent waiting for the disk or the server.
const DefaultWorkers = 8

// Stored counts the chunks that PutChunks has written, and their packed bytes.
type Stored struct{ Chunks, Bytes atomic.Int64 }

// PutChunks writes the chunks of an image to the chunk store of the Destination, several at a time. If
// the store has a chunk already, PutChunks replaces it only if it is damaged. In a folder, it reads and
// verifies such a chunk. In a bucket, it does so only if the size differs from the size of a new chunk,
// because the server has verified the bytes when it received them. done counts the bytes of the image
// whose chunks are in the store.
func (d *Destination) PutChunks(ctx context.Context, im *Image, t *caibx.Table, workers int, done *atomic.Int64) (*Stored, error) {
	var stored Stored
	firsts := func(yield func(caibx.Item) bool) {
		for n := range t.Len() {
			i := t.Item(n)
			if first, _ := t.Find(i.ID); first != n {
				done.Add(i.Length)
			} else if !yield(i) {
				return
			}
		}
	}
	return &stored, backup.InParallel(ctx, workers, firsts, func() func(context.Context, caibx.Item) error {
		w := chunkWriter{d: d, im: im, digest: t.Header().Digest, packer: caibx.NewPacker(), unpacker: caibx.NewUnpacker(), stored: &stored}
		return func(ctx context.Context, i caibx.Item) error {
			if err := w.write(ctx, i); err != nil {
				return fmt.Errorf("store chunk at %d: %w", i.Offset, err)
			}
			done.Add(i.Length)
			return nil
		}
	})
}

// chunkWriter writes one chunk at a time.
type chunkWriter struct {
	d        *Destination
	im       *Image
	digest   caibx.Digest
	packer   *caibx.Packer
	unpacker *caibx.Unpacker
	stored   *Stored

	chunk, packed, read, unpacked []byte // buffers
}

// write writes a chunk unless the store has it.
func (w *chunkWriter) write(ctx context.Context, i caibx.Item) error {
	var err error
	if w.chunk, err = w.im.readChunk(w.chunk, i, w.digest); err != nil {
		return err
	}
	key := path.Join(StoreName, i.ID.PackedPath())
	w.packed = w.packed[:0]
	pack := func() int64 { // not needed to verify a chunk in a folder
		if len(w.packed) == 0 {
			w.packed = w.packer.Pack(w.packed, w.chunk)
		}
		return int64(len(w.packed))
	}
	has, err := backup.IsStored(ctx, w.d.store, key, pack, func(file io.Reader) (bool, error) {
		w.read, w.unpacked = grown(w.read, caibx.MaxPacked(i.Length)+1), grown(w.unpacked, i.Length)
		n, err := io.ReadFull(file, w.read)
		if err != io.ErrUnexpectedEOF && err != io.EOF {
			return false, err // nil: the file is too long
		}
		return w.unpacker.Unpack(w.unpacked, w.read[:n], w.digest, i.ID) == nil, nil
	})
	if err != nil || has {
		return err
	}
	pack()
	if err := w.d.store.Put(ctx, key, w.packed); err != nil {
		return err
	}
	w.stored.Chunks.Add(1)
	w.stored.Bytes.Add(int64(len(w.packed)))
	return nil
}

// grown returns a buffer of length bytes, a new one if buf is too small.
func grown(buf []byte, length int64) []byte {
	if int64(cap(buf)) < length {
		buf = make([]byte, length)
	}
	return buf[:length]
}

// readChunk reads a chunk into buffer, or into a new buffer if buffer is too small. If the bytes do not
// match the index, the image has changed: the error is disk.ErrModified.
func (im *Image) readChunk(buffer []byte, i caibx.Item, d caibx.Digest) ([]byte, error) {
	buffer = grown(buffer, i.Length)
	if _, err := im.ReadAt(buffer, i.Offset); err != nil {
		return buffer, im.readError(err)
	}
	if d.Check(buffer, i.ID) != nil {
		return buffer, fmt.Errorf("%s: %w", im.Name(), disk.ErrModified)
	}
	return buffer, nil
}
