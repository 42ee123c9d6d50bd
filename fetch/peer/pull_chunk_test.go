package peer

import (
	"bytes"
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// singly returns an exchange for single chunks, and what gets the numbered one n of the
// only source, which answers as open does.
func singly(open func(asked int, at, to int64) (io.ReadCloser, error)) (*exchange, func(ctx context.Context, n int64) error) {
	s := Source{Address: Address{Node: "node1"}, Disk: "disk1"}
	p := &Pull{Client: new(Client), Sources: func() []Source { return []Source{s} }}
	x, asked := p.exchange(), 0
	x.open = func(_ context.Context, _ Source, at, to int64) (io.ReadCloser, error) {
		asked++
		return open(asked, at, to)
	}
	get := x.fetch(1 << 40)
	return x, func(ctx context.Context, n int64) error {
		var chunk bytes.Buffer
		_, _ = chunk.ReadFrom(&numbered{n * mib, (n + 1) * mib})
		_, err := get(ctx, n, disk.SumChunk(chunk.Bytes()), disk.NewBuffer())
		return err
	}
}

// A repair may take hours and need many chunks. What fails now and then, and answers in
// between, is not set aside for longer each time.
func TestPullOfSingleChunksForgetsOldFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, get := singly(func(asked int, at, to int64) (io.ReadCloser, error) {
			if asked%5 == 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return io.NopCloser(&numbered{at, to}), nil
		})
		for n := range int64(50) {
			begun := time.Now()
			if err := get(t.Context(), n); err != nil || time.Since(begun) > firstAside {
				t.Fatalf("chunk %d after %v: %v", n, time.Since(begun), err)
			}
			time.Sleep(time.Minute)
		}
	})
}
