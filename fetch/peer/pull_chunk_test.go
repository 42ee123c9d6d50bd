package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// newChunkTransfer returns a function that fetches chunk n of the numbered image from a single
// source. open returns the responses of the source.
func newChunkTransfer(open func(request int, from, to int64) (io.ReadCloser, error)) func(ctx context.Context, n int64) error {
	s := Source{Address: Address{Node: "node1"}, Disk: "disk1"}
	p := &Pull{Client: new(Client), Sources: func() []Source { return []Source{s} }}
	transfer, requests := p.newTransfer(), 0
	transfer.openRange = func(_ context.Context, _ Source, from, to int64) (io.ReadCloser, error) {
		requests++
		return open(requests, from, to)
	}
	get := transfer.chunkFetcher(1 << 40)
	return func(ctx context.Context, n int64) error {
		var chunk bytes.Buffer
		_, _ = chunk.ReadFrom(&numberedReader{n * mib, (n + 1) * mib})
		_, err := get(ctx, n, disk.NewChunks.Hash(chunk.Bytes()), disk.NewChunkBuffer())
		return err
	}
}

// TestChunkFetcherForgetsOldFailures: a repair may take hours and need many chunks. The backoff of a
// source that fails occasionally must not grow.
func TestChunkFetcherForgetsOldFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get := newChunkTransfer(func(request int, from, to int64) (io.ReadCloser, error) {
			if request%5 == 0 {
				return nil, io.ErrUnexpectedEOF
			}
			return io.NopCloser(&numberedReader{from, to}), nil
		})
		for n := range int64(50) {
			start := time.Now()
			if err := get(t.Context(), n); err != nil || time.Since(start) > firstBackoff {
				t.Fatalf("chunk %d after %v: %v", n, time.Since(start), err)
			}
			time.Sleep(time.Minute)
		}
	})
}

func TestChunkFetcherVerifiesChunks(t *testing.T) {
	want := image(3*mib + 512)
	corrupt, good := startNode(t, "node1"), startNode(t, "node2")
	r := newReceiver(t, proxied(t, corrupt.put(t, parrot, want), onData(corruptByte)), good.put(t, parrot, want))
	get := r.pull.ChunkFetcher(int64(len(want)))
	for _, n := range []int64{3, 0, 1, 3} {
		chunk := want[n*mib : min((n+1)*mib, int64(len(want)))]
		buf := disk.NewChunkBuffer()
		got, err := get(t.Context(), n, disk.NewChunks.Hash(chunk), buf)
		if err != nil || !bytes.Equal(buf[:got], chunk) {
			t.Errorf("chunk %d: %d bytes, error %v", n, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := get(ctx, 0, disk.ChunkHash{}, disk.NewChunkBuffer()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v after the context ended", err)
	}
}

func TestChunkFetcherUsesTheUpstream(t *testing.T) {
	want := image(2*mib + 512)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "parrot.raw", time.Time{}, bytes.NewReader(want))
	}))
	t.Cleanup(upstream.Close)
	client := &fetch.Client{AllowLoopback: true}
	ranges, err := client.NewRangeReader(fetch.Request{URL: upstream.URL + "/parrot.raw", Digest: sha512Of(want)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ranges.Close)
	r := newReceiver(t, proxied(t, startNode(t, "node1").put(t, parrot, want), onData(corruptByte)))
	r.pull.Upstream = ranges
	buf := disk.NewChunkBuffer()
	n, err := r.pull.ChunkFetcher(int64(len(want)))(t.Context(), 2, disk.NewChunks.Hash(want[2*mib:]), buf)
	if err != nil || !bytes.Equal(buf[:n], want[2*mib:]) {
		t.Errorf("%d bytes, error %v", n, err)
	}
	if received := r.pull.Progress.UpstreamBytes.Load(); received != 512 {
		t.Errorf("received %d bytes from the upstream, want 512", received)
	}
}

func TestChunkFetcherGivesUpOnABusySource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		get := newChunkTransfer(func(int, int64, int64) (io.ReadCloser, error) { return nil, &busyError{retryAfter: time.Second} })
		ctx, cancel := context.WithTimeout(t.Context(), 2*maxBusyTime)
		defer cancel()
		if err := get(ctx, 1); err == nil || !strings.Contains(err.Error(), "busy: the sending limit is reached") {
			t.Error(err)
		}
	})
}
