package clone

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// mostWorkers bounds the memory of a transfer, and is more than any disk can follow.
const mostWorkers = 8

// piece is a chunk on its way from the source to the part.
type piece struct {
	buf  []byte // of disk.NewBuffer
	size int64
	at   int64 // in what is read
	sum  disk.ChunkSum
	err  error
	done chan struct{}
}

// stream is the pieces between the goroutine that reads, those that change, and the one
// that puts. Its channels have room for all pieces that there are.
type stream struct {
	free        chan []byte
	work, order chan *piece
}

// pour reads r, a disk, from an offset to size, changes each piece, and puts it at the
// end of the part. One goroutine reads r, several change.
func pour(ctx context.Context, part *disk.Part, r io.ReaderAt, offset, size int64, change func(b []byte, offset int64), progress *fetch.Progress) error {
	workers := min(runtime.GOMAXPROCS(0), mostWorkers)
	depth := workers + 2 // one is read, one is put
	s := stream{free: make(chan []byte, depth), work: make(chan *piece, depth), order: make(chan *piece, depth)}
	for range depth {
		s.free <- disk.NewBuffer()
	}
	reading, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.read(reading, r, offset, size) })
	for range workers {
		running.Go(func() { s.change(change) })
	}
	if err := s.put(part, progress); err != nil {
		return err
	}
	return ctx.Err()
}

// read ends with the disk, ctx or an error, which goes with the piece.
func (s stream) read(ctx context.Context, r io.ReaderAt, offset, size int64) {
	defer close(s.order)
	defer close(s.work)
	for at := offset; at < size; at += disk.ChunkSize {
		var buf []byte
		select {
		case buf = <-s.free:
		case <-ctx.Done():
			return
		}
		p := &piece{buf: buf, at: at, size: min(disk.ChunkSize, size-at), done: make(chan struct{})}
		p.err = readFull(r, p.buf[:p.size], at)
		s.work <- p
		s.order <- p
		if p.err != nil {
			return
		}
	}
}

func (s stream) change(change func(b []byte, offset int64)) {
	for p := range s.work {
		if b := p.buf[:p.size]; p.err == nil {
			change(b, p.at)
			p.sum = disk.SumChunk(b)
		}
		close(p.done)
	}
}

func (s stream) put(part *disk.Part, progress *fetch.Progress) error {
	for p := range s.order {
		<-p.done
		if p.err != nil {
			return p.err
		}
		buf, err := part.Put(p.buf, p.size, p.sum)
		if err != nil {
			return err
		}
		progress.Done.Add(p.size)
		s.free <- buf
	}
	return nil
}

func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read the source at %d: %w", at, err)
}
