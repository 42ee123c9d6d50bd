package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

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
	ranges, done, err := client.OpenRanges(fetch.Request{URL: upstream.URL + "/parrot.raw", Digest: sha512Of(want)}, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(done)
	r := newReceiver(t, proxied(t, startNode(t, "node1").put(t, parrot, want), onData(corruptByte)))
	r.pull.Upstream = []assemble.Provider{ranges[0]}
	buf := disk.NewChunkBuffer()
	n, err := r.pull.ChunkFetcher(int64(len(want)))(t.Context(), 2, disk.NewChunks.Hash(want[2*mib:]), buf)
	if err != nil || !bytes.Equal(buf[:n], want[2*mib:]) {
		t.Errorf("%d bytes, error %v", n, err)
	}
	if received := r.pull.Progress.UpstreamBytes.Load(); received != 512 {
		t.Errorf("received %d bytes from the upstream, want 512", received)
	}
}

// A repair while no peer has a copy reads the addresses of the upstream in order.
func TestChunkFetcherUsesMirrors(t *testing.T) {
	want := image(512)
	bytesOf := func(b []byte) assemble.Provider {
		return assemble.Open(func(_ context.Context, from, to int64) (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(b[from:to])), nil
		})
	}
	away := assemble.Open(func(context.Context, int64, int64) (io.ReadCloser, error) {
		return nil, &fetch.Error{Class: fetch.Refused, Err: errors.New("404")}
	})
	r := newReceiver(t)
	buf, hash := disk.NewChunkBuffer(), disk.NewChunks.Hash(want)
	r.pull.Upstream = []assemble.Provider{away, bytesOf(make([]byte, 512)), bytesOf(want)}
	if n, err := r.pull.ChunkFetcher(512)(t.Context(), 0, hash, buf); err != nil || !bytes.Equal(buf[:n], want) {
		t.Errorf("%d bytes, error %v", n, err)
	}
	r = newReceiver(t)
	r.pull.Upstream = []assemble.Provider{away, bytesOf(make([]byte, 512))}
	_, err := r.pull.ChunkFetcher(512)(t.Context(), 0, hash, buf)
	if e, ok := errors.AsType[*fetch.Error](err); !ok || e.Class != fetch.BadSource {
		t.Errorf("got %v without a right address", err)
	}
}
