package peer

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/race"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

func TestPullResumes(t *testing.T) {
	t.Parallel()
	want := image(24 * mib)
	for i, from := range []struct {
		name   string
		origin func(Source) disk.Origin
		part   []byte
		keeps  bool
	}{
		{"of a pull", func(s Source) disk.Origin {
			return disk.Origin{Source: "chunks " + s.Chunks.String(), Size: int64(len(want))}
		}, want[:9*mib], true},
		{"of a download", func(Source) disk.Origin {
			return disk.Origin{Source: "a hash", ETag: `"1"`, Size: int64(len(want))}
		}, want[:9*mib+100], true},
		{"of a download whose length was not known", func(Source) disk.Origin {
			return disk.Origin{Source: "a hash", Size: -1}
		}, want[:9*mib], true},
		{"of something else", func(Source) disk.Origin {
			return disk.Origin{Source: "a hash", Size: int64(len(want))}
		}, append(bytes.Clone(want[:8*mib]), make([]byte, mib)...), false},
		{"of another size", func(Source) disk.Origin {
			return disk.Origin{Source: "a hash", Size: int64(len(want)) + 512}
		}, want[:9*mib], false},
		{"that is all there", func(s Source) disk.Origin {
			return disk.Origin{Source: "chunks " + s.Chunks.String(), Size: int64(len(want))}
		}, want, true},
	} {
		if race.Enabled && i%3 != 0 {
			continue
		}
		t.Run(from.name, func(t *testing.T) {
			s := startNode(t, "node1").put(t, parrot, want)
			r := newReceiver(t, s)
			part := r.part()
			if err := part.Begin(from.origin(s)); err != nil {
				t.Fatal(err)
			}
			if _, err := part.ReadFrom(bytes.NewReader(from.part)); err != nil {
				t.Fatal(err)
			}
			if err := part.Close(); err != nil {
				t.Fatal(err)
			}
			r.gets(want)
			rest := dataBytes(want)
			if from.keeps {
				rest = dataBytes(want[len(from.part)/mib*mib:])
			}
			sums := int64(len(want)/mib) * 32
			if moved := r.pull.Progress.Peers.Load(); moved != rest+sums {
				t.Errorf("%d bytes came, want the %d that are missing", moved, rest+sums)
			}
		})
	}
}

func TestPullEndsWithItsContext(t *testing.T) {
	want := image(16 * mib)
	s := behind(t, startNode(t, "node1").put(t, parrot, want), onData(stops(5*mib/2, func(r *http.Request) { <-r.Context().Done() })))
	r := newReceiver(t, s)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("no longer declared")
	part := r.part()
	go func() {
		for r.pull.Progress.Done.Load() < 2*mib {
			<-time.After(time.Millisecond)
		}
		cancel(why)
	}()
	begun := time.Now()
	if err := r.pull.Into(ctx, part, int64(len(want))); !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("it took %v to end", took)
	}
	if part.Offset() != 2*mib {
		t.Errorf("%d bytes are kept, want %d", part.Offset(), 2*mib)
	}
	if from := r.disk.Look(parrot).PartFrom; !strings.HasPrefix(from, Pulled) {
		t.Errorf("the part is of %q", from)
	}
}

func TestPullKeepsToItsLimit(t *testing.T) {
	want := image(6 * mib)
	r := newReceiver(t, startNode(t, "node1").put(t, parrot, want), startNode(t, "node2").put(t, parrot, want))
	r.pull.Limit = 4 * mib
	begun := time.Now()
	r.gets(want)
	if took, least := time.Since(begun).Seconds(), float64(dataBytes(want))/float64(r.pull.Limit); took < 0.85*least {
		t.Errorf("it took %.2f s at the limit, want at least %.2f", took, least)
	}
}

func TestPullOfOneChunk(t *testing.T) {
	want := image(3*mib + 512)
	liar, good := startNode(t, "node1"), startNode(t, "node2")
	r := newReceiver(t, behind(t, liar.put(t, parrot, want), onData(lies)), good.put(t, parrot, want))
	get := r.pull.Chunk(int64(len(want)))
	for _, n := range []int64{3, 0, 1, 3} {
		chunk := want[n*mib : min((n+1)*mib, int64(len(want)))]
		buf := disk.NewBuffer()
		got, err := get(t.Context(), n, disk.SumChunk(chunk), buf)
		if err != nil || !bytes.Equal(buf[:got], chunk) {
			t.Errorf("chunk %d: %d bytes, error %v", n, got, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := get(ctx, 0, disk.ChunkSum{}, disk.NewBuffer()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v of a context that has ended", err)
	}
}

func TestPullOfOneChunkFromTheOrigin(t *testing.T) {
	want := image(2*mib + 512)
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "parrot.raw", time.Time{}, bytes.NewReader(want))
	}))
	t.Cleanup(origin.Close)
	client := &fetch.Client{AllowLoopback: true}
	ranges, err := client.Ranges(fetch.Request{URL: origin.URL + "/parrot.raw", Digest: sha512Of(want)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ranges.Close)
	r := newReceiver(t, behind(t, startNode(t, "node1").put(t, parrot, want), onData(lies)))
	r.pull.Origin = ranges
	buf := disk.NewBuffer()
	n, err := r.pull.Chunk(int64(len(want)))(t.Context(), 2, disk.SumChunk(want[2*mib:]), buf)
	if err != nil || !bytes.Equal(buf[:n], want[2*mib:]) {
		t.Errorf("%d bytes, error %v", n, err)
	}
	if moved := r.pull.Progress.Moved.Load(); moved != 512 {
		t.Errorf("%d bytes came from the origin, want 512", moved)
	}
}
