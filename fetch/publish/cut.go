package publish

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
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

const (
	pieceSize  = 256 << 10 // of a read
	batchBytes = 4 << 20   // a batch ends after that many bytes of chunks,
	batchItems = 4096      // or after that many chunks
)

// batch is a run of chunks. Their ids are computed by one goroutine, while others compute those of the
// next batches. The chunks in a hole have their ids already.
type batch struct {
	items  []caibx.Item
	hashed chan struct{} // closed when the items have their ids
}

// Cut returns the index of the image with these chunks. done counts the bytes that have been read. The
// caller closes the Table.
//
// One goroutine finds the ends of the chunks. Others read the chunks again, from the page cache, and
// compute their ids, which costs more.
func (im *Image) Cut(ctx context.Context, h caibx.Header, done *atomic.Int64) (*caibx.Table, error) {
	if h.Max > MaxChunk {
		return nil, fmt.Errorf("chunks of up to %d bytes are not supported: use at most %d", h.Max, MaxChunk)
	}
	chunker, err := caibx.NewChunker(h.Sizes)
	if err != nil {
		return nil, err
	}
	f, err := caibx.TempFile("")
	if err != nil {
		return nil, err
	}
	if err := im.writeIndex(ctx, f, h, chunker, done); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return caibx.NewTable(f, nil, Limits)
}

// writeIndex writes the index to a file.
func (im *Image) writeIndex(ctx context.Context, f *os.File, h caibx.Header, chunker *caibx.Chunker, done *atomic.Int64) error {
	workers := runtime.GOMAXPROCS(0)
	group, ctx := errgroup.WithContext(ctx)
	todo, ordered := make(chan *batch), make(chan *batch, 2*workers)
	group.Go(func() error {
		defer close(todo)
		defer close(ordered)
		return im.findChunks(ctx, h, chunker, func(items []caibx.Item) error {
			b := &batch{items, make(chan struct{})}
			for _, queue := range []chan<- *batch{ordered, todo} {
				select {
				case queue <- b:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	})
	for range workers {
		group.Go(func() error { return im.hashBatches(h, todo, done) })
	}
	group.Go(func() error { return writeBatches(ctx, f, h, ordered) })
	return group.Wait()
}

// findChunks passes on the chunks of the image in batches. It does not read holes.
func (im *Image) findChunks(ctx context.Context, h caibx.Header, chunker *caibx.Chunker, put func([]caibx.Item) error) error {
	var items []caibx.Item
	buffer, begin, pending := make([]byte, pieceSize), int64(0), int64(0)
	add := func(end int64, id caibx.ID) error {
		items = append(items, caibx.Item{Offset: begin, Length: end - begin, ID: id})
		pending += end - begin
		begin = end
		if pending < batchBytes && len(items) < batchItems && end < im.Size {
			return nil
		}
		full := items
		items, pending = nil, 0
		return put(full)
	}
	holes := holeFinder{im: im, length: int64(h.Max)}
	if chunker.CutsZerosAtMax() {
		holes.id = h.Digest.ZeroID(holes.length)
	}
	for at := int64(0); at < im.Size; {
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
		piece := buffer[:min(pieceSize, im.Size-at)]
		if _, err := im.ReadAt(piece, at); err != nil {
			return im.readError(err)
		}
		for end := false; len(piece) > 0 && !(end && holes.has(at)); {
			var n int
			n, end = chunker.Next(piece)
			piece, at = piece[n:], at+int64(n)
			if end {
				if err := add(at, caibx.ID{}); err != nil {
					return err
				}
			}
		}
	}
	if begin < im.Size {
		return add(im.Size, caibx.ID{})
	}
	return nil
}

// holeFinder finds chunks that are in a hole of the file.
type holeFinder struct {
	im     *Image
	length int64    // of a chunk of zeros
	id     caibx.ID // of a chunk of zeros; zero: runs of zeros have other chunks

	data int64 // where the next data begins
}

// has reports whether a chunk that begins at an offset is in a hole. Each offset must be at least the
// one before it.
func (h *holeFinder) has(at int64) bool {
	if h.id == (caibx.ID{}) || at+h.length > h.im.Size {
		return false
	}
	if h.data <= at {
		data, err := h.im.Seek(at, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // there is no data after it
			data = h.im.Size
		case err != nil: // the file system does not support it
			h.id = caibx.ID{}
			return false
		}
		h.data = data
	}
	return at+h.length <= h.data
}

// readError returns the error for a file that could not be read completely.
func (im *Image) readError(err error) error {
	if err == io.EOF {
		err = io.ErrUnexpectedEOF // the file has become shorter
	}
	return fmt.Errorf("read %s: %w", im.Name(), err)
}

// hashBatches computes the ids of the chunks.
func (im *Image) hashBatches(h caibx.Header, todo <-chan *batch, done *atomic.Int64) error {
	hash, buffer := h.Digest.New(), make([]byte, pieceSize)
	for b := range todo {
		for n := range b.items {
			i := &b.items[n]
			done.Add(i.Length)
			if i.ID != (caibx.ID{}) {
				continue
			}
			hash.Reset()
			if _, err := io.CopyBuffer(onlyWriter{hash}, io.NewSectionReader(im, i.Offset, i.Length), buffer); err != nil {
				return im.readError(err)
			}
			hash.Sum(i.ID[:0])
		}
		close(b.hashed)
	}
	return nil
}

// onlyWriter hides other methods, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

// writeBatches writes the index.
func writeBatches(ctx context.Context, f *os.File, h caibx.Header, ordered <-chan *batch) error {
	buffered := bufio.NewWriterSize(f, 64<<10)
	w, err := caibx.NewWriter(buffered, h)
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
