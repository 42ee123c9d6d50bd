package outfile

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Writer takes the chunks of one image. It is for one goroutine.
type Writer struct {
	size int64
	next int64 // the chunk that is to come
	hash hash.Hash
	sink sink
	part *part // nil: it goes to a stream
}

// sink is where chunks go, in order.
type sink interface {
	Put(chunk []byte) error
	PutZeros(length int64) error
}

// Stream writes an image of so many bytes to w. What it has written stays written:
// Commit tells whether it was right. Packed it has no end before.
func Stream(w io.Writer, packing Packing, size int64) *Writer {
	return &Writer{size: size, hash: disk.SHA512.New(), sink: stream{streamTo(w, packing)}}
}

// Next returns the number of the chunk that is to come.
func (w *Writer) Next() int64 { return w.next }

// Offset returns how many bytes of the image are here.
func (w *Writer) Offset() int64 { return min(w.size, w.next*disk.ChunkSize) }

func (w *Writer) length() int64 { return min(disk.ChunkSize, w.size-w.Offset()) }

// Put writes the next chunk, nil for one of zeros.
func (w *Writer) Put(chunk []byte) error {
	length := w.length()
	var err error
	switch {
	case length == 0 || chunk != nil && int64(len(chunk)) != length:
		return fmt.Errorf("write image: %d bytes at %d of %d", len(chunk), w.Offset(), w.size)
	case chunk == nil || isZero(chunk):
		chunk = zeroChunk[:length]
		err = w.sink.PutZeros(length)
	default:
		err = w.sink.Put(chunk)
	}
	if err != nil {
		return fmt.Errorf("write image: %w", noSpace(err))
	}
	w.took(chunk)
	return nil
}

func (w *Writer) took(chunk []byte) {
	w.hash.Write(chunk)
	w.next++
}

// Commit checks that what came is the image want, and lets the file appear. Otherwise
// the error is a *disk.ChecksumError, and of the part nothing is left.
func (w *Writer) Commit(want disk.Digest) error {
	if w.Offset() != w.size {
		return fmt.Errorf("write image: it ends at %d of %d: %w", w.Offset(), w.size, io.ErrUnexpectedEOF)
	}
	got := disk.SHA512.Digest(w.hash)
	switch {
	case w.part == nil && got != want:
		return &disk.ChecksumError{Want: want, Got: got}
	case w.part == nil:
		return w.sink.(stream).Close()
	case got != want:
		return w.part.discard(&disk.ChecksumError{Want: want, Got: got})
	}
	return w.part.appear()
}

// Close lets go of the part, which stays if there is anything in it.
func (w *Writer) Close() error {
	if w.part == nil {
		return nil
	}
	return w.part.close()
}

// Resume takes up what an earlier run left, as far as its chunks are those of m, which
// is of the same size, and drops the rest. m may be nil: then nothing can be told right,
// and all is dropped. It comes before the first Put. progress is called with the bytes
// of each chunk that stays.
func (w *Writer) Resume(ctx context.Context, m *disk.Manifest, progress func(int64)) error {
	if w.part == nil {
		return nil
	}
	var end int64 // in the part, of what stays
	if m != nil {
		from, err := w.part.held()
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
			chunk, took, err := from.next(buf[:w.length()])
			if err != nil || int64(len(chunk)) != w.length() || disk.HashChunk(chunk) != want {
				break // what cannot be read is asked for again
			}
			end += took
			w.took(chunk)
			progress(int64(len(chunk)))
		}
		_ = unix.Fadvise(int(w.part.f.Fd()), 0, 0, unix.FADV_DONTNEED) // only a favour to others
	}
	w.sink = w.part.sinkAt(end)
	return w.part.f.Truncate(end)
}

// holding reads what a part holds, chunk by chunk.
type holding interface {
	// next returns the next chunk, which should have as many bytes as into, and how
	// many it has in the part.
	next(into []byte) (chunk []byte, took int64, err error)
}

func (p *part) held() (holding, error) {
	if _, err := p.f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if p.Packing == Plain {
		return unpacked{p.f}, nil
	}
	return newUnpacker(p.f, p.Packing), nil
}

type unpacked struct{ f *os.File }

func (u unpacked) next(into []byte) ([]byte, int64, error) {
	n, err := io.ReadFull(u.f, into)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return into[:n], int64(n), err
}
