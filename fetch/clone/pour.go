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

// pour reads r, the disk on one side, from an offset to size, changes each piece, and puts
// it at the end of the part. r is read by one goroutine, change works in several.
func pour(ctx context.Context, part *disk.Part, r io.ReaderAt, offset, size int64, change func(b []byte, offset int64), progress *fetch.Progress) error {
	workers := min(runtime.GOMAXPROCS(0), mostWorkers)
	depth := workers + 2 // one is read, one is put
	free, work, order := make(chan []byte, depth), make(chan *piece, depth), make(chan *piece, depth)
	for range depth {
		free <- disk.NewBuffer()
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for range workers {
		running.Go(func() {
			for p := range work {
				if b := p.buf[:p.size]; p.err == nil {
					change(b, p.at)
					p.sum = disk.SumChunk(b)
				}
				close(p.done)
			}
		})
	}
	running.Go(func() {
		defer close(order)
		defer close(work)
		for at := offset; at < size; at += disk.ChunkSize {
			var p *piece
			select {
			case buf := <-free:
				p = &piece{buf: buf, at: at, size: min(disk.ChunkSize, size-at), done: make(chan struct{})}
			case <-ctx.Done():
				return
			}
			p.err = readFull(r, p.buf[:p.size], at)
			work <- p
			order <- p
			if p.err != nil {
				return
			}
		}
	})
	for p := range order {
		<-p.done
		if p.err != nil {
			return p.err
		}
		buf, err := part.Put(p.buf, p.size, p.sum)
		if err != nil {
			return err
		}
		progress.Done.Add(p.size)
		free <- buf
	}
	return ctx.Err()
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
