package caibx

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

const (
	pieceSize  = 256 << 10 // of a read
	batchBytes = 4 << 20   // a batch ends after that many bytes of chunks,
	batchItems = 4096      // or after that many chunks
)

// batch is a run of chunks. One goroutine computes their ids, while others compute the ids of the next
// batches. The chunks in a hole have their ids already.
type batch struct {
	items  []Item
	hashed chan struct{} // closed when the items have their ids
}

// File is a file that is cut into chunks. Its methods may be called concurrently.
type File interface {
	io.ReaderAt
	// NextData returns the offset of the first data at or after an offset, or the size of the file if there is
	// none. Everything between is a hole. A file without holes returns the offset itself.
	NextData(offset int64) (int64, error)
}

// MaxCut is the greatest size of a chunk that this program cuts or fetches, in bytes. A download has some chunks in memory.
const MaxCut = 16 << 20

// Cut cuts a file of size bytes into the chunks that the header h describes, and returns the index. The index is in f, a
// file of TempFile, which Cut closes. done counts the bytes that have been read. The caller closes the Table. The errors
// are those of the file and of f, an error of the sizes, or io.ErrUnexpectedEOF if the file is shorter.
//
// One goroutine finds the ends of the chunks. Others read the chunks again, from the page cache, and
// compute their ids, which costs more.
func Cut(ctx context.Context, file File, size int64, h Header, f *os.File, done *atomic.Int64) (*Table, error) {
	if h.Max > MaxCut {
		return nil, errors.Join(fmt.Errorf("chunks of up to %d bytes are not supported: use at most %d", h.Max, MaxCut), f.Close())
	}
	chunker, err := NewChunker(h.Sizes)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c := &cutter{file: file, size: size, header: h, done: done}
	if err := c.writeIndex(ctx, f, chunker); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return NewTable(f, nil, Limits{Image: size, Chunk: 1})
}

// cutter cuts one file.
type cutter struct {
	file   File
	size   int64
	header Header
	done   *atomic.Int64
}

// writeIndex writes the index to a file.
func (c *cutter) writeIndex(ctx context.Context, f *os.File, chunker *Chunker) error {
	workers := runtime.GOMAXPROCS(0)
	group, ctx := errgroup.WithContext(ctx)
	ordered := make(chan *batch, 2*workers)
	group.SetLimit(workers + 2)
	group.Go(func() error {
		defer close(ordered)
		return c.findChunks(ctx, chunker, func(items []Item) error {
			b := &batch{items, make(chan struct{})}
			select {
			case ordered <- b:
			case <-ctx.Done():
				return ctx.Err()
			}
			group.Go(func() error { return c.hash(b) }) // waits while the limit is reached
			return nil
		})
	})
	group.Go(func() error { return writeBatches(ctx, f, c.header, ordered) })
	return group.Wait()
}

// findChunks calls put with the chunks of the file, in batches. It does not read holes.
func (c *cutter) findChunks(ctx context.Context, chunker *Chunker, put func([]Item) error) error {
	var items []Item
	buffer, begin, pending := make([]byte, windowSize+pieceSize), int64(0), int64(0)
	add := func(end int64, id ID) error {
		items = append(items, Item{Offset: begin, Length: end - begin, ID: id})
		pending += end - begin
		begin = end
		if pending < batchBytes && len(items) < batchItems && end < c.size {
			return nil
		}
		full := items
		items, pending = nil, 0
		return put(full)
	}
	holes := holeFinder{cutter: c, length: int64(c.header.Max)}
	if chunker.CutsZerosAtMax() {
		holes.id = c.header.Digest.ZeroID(holes.length)
	}
	for at := int64(0); at < c.size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if at == begin && holes.has(at) {
			at += holes.length
			if err := add(at, holes.id); err != nil {
				return err
			}
			continue
		}
		piece := buffer[:windowSize+min(pieceSize, c.size-at)]
		if n, err := c.file.ReadAt(piece[windowSize:], at); n < len(piece)-windowSize {
			return readError(err)
		}
		for next, end := windowSize, false; next < len(piece) && !(end && holes.has(at)); {
			var n int
			n, end = chunker.Next(piece, next)
			next, at = next+n, at+int64(n)
			if end {
				if err := add(at, ID{}); err != nil {
					return err
				}
			}
		}
		copy(buffer, piece[len(piece)-windowSize:])
	}
	if begin < c.size {
		return add(c.size, ID{})
	}
	return nil
}

// holeFinder finds chunks that are in a hole of the file.
type holeFinder struct {
	*cutter
	length int64 // of a chunk of zeros
	id     ID    // of a chunk of zeros; zero: runs of zeros have other chunks

	data int64 // where the next data begins
}

// has reports whether a chunk that begins at an offset is in a hole. The offset must not be less than in
// the call before.
func (h *holeFinder) has(at int64) bool {
	if h.id == (ID{}) || at+h.length > h.size {
		return false
	}
	if h.data <= at {
		data, err := h.file.NextData(at)
		if err != nil {
			h.id = ID{}
			return false
		}
		h.data = data
	}
	return at+h.length <= h.data
}

// readError returns the error for a file that could not be read completely.
func readError(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF // the file has become shorter
	}
	return err
}

// hash computes the ids of the chunks of a batch.
func (c *cutter) hash(b *batch) error {
	hash, buffer := c.header.Digest.New(), make([]byte, pieceSize)
	for n := range b.items {
		i := &b.items[n]
		c.done.Add(i.Length)
		if i.ID != (ID{}) {
			continue
		}
		hash.Reset()
		n, err := io.CopyBuffer(onlyWriter{hash}, io.NewSectionReader(c.file, i.Offset, i.Length), buffer)
		if err == nil && n < i.Length {
			err = io.EOF
		}
		if err != nil {
			return readError(err)
		}
		hash.Sum(i.ID[:0])
	}
	close(b.hashed)
	return nil
}

// onlyWriter hides all methods except Write, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

// writeBatches writes the index.
func writeBatches(ctx context.Context, f *os.File, h Header, ordered <-chan *batch) error {
	buffered := bufio.NewWriterSize(f, 64<<10)
	w, err := NewWriter(buffered, h)
	if err != nil {
		return err
	}
	for b := range ordered {
		select {
		case <-b.hashed:
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, i := range b.items {
			if err := w.Append(i.Length, i.ID); err != nil {
				return err
			}
		}
	}
	return errors.Join(w.Close(), buffered.Flush())
}
