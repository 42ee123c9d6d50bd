package outfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Writer writes the chunks of one image. It is not safe for concurrent use.
type Writer struct {
	size int64
	next int64 // the number of the next chunk
	hash hash.Hash
	sink sink
	part *partialFile // nil: a stream
}

// sink receives the chunks in order.
type sink interface {
	Put(chunk []byte) error
	PutZeros(length int64) error
}

// NewStreamWriter returns a Writer of an image of size bytes to w. Bytes in a stream cannot be
// removed, so Commit only reports whether they were right. Commit also writes the end of a compressed
// stream.
func NewStreamWriter(w io.Writer, compression Compression, size int64) *Writer {
	return &Writer{size: size, hash: ident.SHA512.New(), sink: streamSink{newStream(w, compression)}}
}

// Next returns the number of the next chunk.
func (w *Writer) Next() int64 { return w.next }

// Offset returns the number of bytes written.
func (w *Writer) Offset() int64 { return min(w.size, w.next*disk.ChunkSize) }

func (w *Writer) length() int64 { return min(disk.ChunkSize, w.size-w.Offset()) }

// AppendChunk writes the next chunk; nil means a chunk of zeros.
func (w *Writer) AppendChunk(chunk []byte) error {
	length := w.length()
	var err error
	switch {
	case length == 0 || chunk != nil && int64(len(chunk)) != length:
		return fmt.Errorf("write image: a chunk of %d bytes does not fit at offset %d of %d", len(chunk), w.Offset(), w.size)
	case chunk == nil || bytes.Equal(chunk, zeroChunk[:len(chunk)]):
		chunk = zeroChunk[:length]
		err = w.sink.PutZeros(length)
	default:
		err = w.sink.Put(chunk)
	}
	if err != nil {
		return fmt.Errorf("write image: %w", wrapNoSpace(err))
	}
	w.advance(chunk)
	return nil
}

func (w *Writer) advance(chunk []byte) {
	w.hash.Write(chunk)
	w.next++
}

// Commit verifies that the image has the digest want, and creates the file. After a
// *disk.ChecksumError, the partial file is removed.
func (w *Writer) Commit(want ident.Digest) error {
	if w.Offset() != w.size {
		return fmt.Errorf("write image: it ends at %d of %d: %w", w.Offset(), w.size, io.ErrUnexpectedEOF)
	}
	got := ident.SHA512.Digest(w.hash)
	switch {
	case w.part == nil && got != want:
		return &disk.ChecksumError{Want: want, Got: got}
	case w.part == nil:
		return w.sink.(streamSink).Close()
	case got != want:
		return errors.Join(&disk.ChecksumError{Want: want, Got: got}, os.Remove(w.part.PartialPath()))
	}
	return w.part.publish()
}

// Close closes the partial file, and keeps it if it is not empty.
func (w *Writer) Close() error {
	if w.part == nil {
		return nil
	}
	return w.part.close()
}

// Resume keeps all chunks of the partial file before the first one that does not match m, and
// discards the other chunks. m must belong to an image of the same size; if m is nil, all chunks are
// discarded. The caller must call Resume before the first AppendChunk. Resume calls progress with the
// length of each chunk that it keeps.
func (w *Writer) Resume(ctx context.Context, m *disk.Manifest, progress func(int64)) error {
	if w.part == nil {
		return nil
	}
	var end int64 // end of the kept chunks in the partial file
	if m != nil {
		next, err := w.part.reader()
		if err != nil {
			return err
		}
		buf := make([]byte, disk.ChunkSize)
		for w.next < m.Chunks() {
			if err := ctx.Err(); err != nil {
				return err
			}
			want, err := m.Hash(w.next)
			if err != nil {
				return err
			}
			chunk := buf[:w.length()]
			length, err := next(chunk)
			if err != nil || !want.Matches(chunk) {
				break // a chunk that cannot be read is written again
			}
			end += length
			w.advance(chunk)
			progress(int64(len(chunk)))
		}
		_ = unix.Fadvise(int(w.part.f.Fd()), 0, 0, unix.FADV_DONTNEED) // if this fails, the pages stay cached
	}
	w.sink = w.part.sinkFrom(end)
	return w.part.f.Truncate(end)
}
