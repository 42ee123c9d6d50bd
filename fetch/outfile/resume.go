package outfile

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

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
			want, err := m.At(w.next)
			if err != nil {
				return err
			}
			chunk, took, err := from.next(buf[:w.length()])
			if err != nil || int64(len(chunk)) != w.length() || disk.SumChunk(chunk) != want {
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
