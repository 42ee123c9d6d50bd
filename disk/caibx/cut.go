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

// File is a file that is cut into chunks. ReadAt may be called concurrently.
type File interface {
	io.ReaderAt
	// IsHole reports whether the bytes [from, to) are a hole, as far as that is known.
	IsHole(from, to int64) bool
}

// MaxCut is the greatest size of a chunk that this program cuts or fetches, in bytes. A download has some chunks in memory.
const MaxCut = 16 << 20

// Cut cuts a file of size bytes into the chunks that the header h describes, and returns the index. The index is in f, a
// file of TempFile, which Cut closes. done counts the bytes that have been read. The caller closes the Table. The errors
// are those of the file and of f, an error of the sizes, or io.ErrUnexpectedEOF if the file is shorter.
//
// One goroutine finds the ends of the chunks. Others read the chunks again, from the page cache, compute their
// ids, which costs more, and write the items of a batch of chunks to their place in the index.
func Cut(ctx context.Context, file File, size int64, h Header, f *os.File, done *atomic.Int64) (*Table, error) {
	if h.Max > MaxCut {
		return nil, errors.Join(fmt.Errorf("chunks of up to %d bytes are not supported: use at most %d", h.Max, MaxCut), f.Close())
	}
	chunker, err := NewChunker(h.Sizes)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c := &cutter{file: file, size: size, header: h, index: f, done: done}
	if err := c.writeIndex(ctx, chunker); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return NewTable(f, nil, Limits{Image: size, Chunk: 1})
}

// cutter cuts one file.
type cutter struct {
	file   File
	size   int64
	header Header
	index  *os.File
	done   *atomic.Int64
}

// writeIndex writes the index.
func (c *cutter) writeIndex(ctx context.Context, chunker *Chunker) error {
	if _, err := NewWriter(c.index, c.header); err != nil {
		return err
	}
	items := int64(0)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	err := c.findChunks(ctx, chunker, func(batch []Item) {
		first := items
		items += int64(len(batch))
		group.Go(func() error { return c.hash(first, batch) }) // waits while the limit is reached
	})
	if failed := group.Wait(); failed != nil {
		err = failed // err is only a consequence
	}
	if err != nil {
		return err
	}
	tail := Writer{w: io.NewOffsetWriter(c.index, headerSize+items*itemSize), items: items}
	return tail.Close()
}

// findChunks calls put with the chunks of the file, in batches. It does not read holes: the chunks there have their ids already.
func (c *cutter) findChunks(ctx context.Context, chunker *Chunker, put func([]Item)) error {
	var items []Item
	buffer, begin, pending := make([]byte, windowSize+pieceSize), int64(0), int64(0)
	add := func(end int64, id ID) {
		items = append(items, Item{Offset: begin, Length: end - begin, ID: id})
		pending += end - begin
		begin = end
		if pending >= batchBytes || len(items) >= batchItems || end == c.size {
			put(items)
			items, pending = nil, 0
		}
	}
	var zeroID ID // of the chunks in a long run of zeros
	zeros := int64(c.header.Max)
	skip := chunker.CutsZerosAtMax()
	if skip {
		zeroID = c.header.Digest.ZeroID(zeros)
	}
	isHole := func(at int64) bool { return skip && at+zeros <= c.size && c.file.IsHole(at, at+zeros) }
	for at := int64(0); at < c.size; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if at == begin && isHole(at) {
			at += zeros
			add(at, zeroID)
			continue
		}
		piece := buffer[:windowSize+min(pieceSize, c.size-at)]
		if n, err := c.file.ReadAt(piece[windowSize:], at); n < len(piece)-windowSize {
			return readError(err)
		}
		for next, end := windowSize, false; next < len(piece) && !(end && isHole(at)); {
			var n int
			n, end = chunker.Next(piece, next)
			if next, at = next+n, at+int64(n); end {
				add(at, ID{})
			}
		}
		copy(buffer, piece[len(piece)-windowSize:])
	}
	if begin < c.size {
		add(c.size, ID{})
	}
	return nil
}

// readError returns the error for a file that could not be read completely.
func readError(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF // the file has become shorter
	}
	return err
}

// hash computes the ids of the chunks of a batch, and writes the items to the index. first is the number of the first one.
func (c *cutter) hash(first int64, items []Item) error {
	buffered := bufio.NewWriterSize(io.NewOffsetWriter(c.index, headerSize+first*itemSize), 64<<10)
	w := Writer{w: buffered, sizes: c.header.Sizes, end: items[0].Offset}
	hash, buffer := c.header.Digest.New(), make([]byte, pieceSize)
	for _, i := range items {
		c.done.Add(i.Length)
		if i.ID == (ID{}) {
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
		if err := w.Append(i.Length, i.ID); err != nil {
			return err
		}
	}
	return buffered.Flush()
}

// onlyWriter hides all methods except Write, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }
