package peer

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

const mib = 1 << 20

// image returns size random bytes; every third 2 MiB are zeros.
func image(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{7}).Read(b)
	for at := 4 * mib; at < size; at += 6 * mib {
		clear(b[at:min(at+2*mib, size)])
	}
	return b
}

// dataBytes returns the number of bytes in chunks of an image that are not zeros.
func dataBytes(image []byte) int64 {
	n := int64(0)
	for at := 0; at < len(image); at += mib {
		chunk := image[at:min(at+mib, len(image))]
		if len(bytes.Trim(chunk, "\x00")) > 0 {
			n += int64(len(chunk))
		}
	}
	return n
}

func sha512Of(b []byte) ident.Digest {
	h := sha512.New()
	h.Write(b)
	return ident.SHA512.Digest(h)
}

// receiver is a disk with a Pull.
type receiver struct {
	t    testing.TB
	disk *disk.Disk
	pull *Pull
}

func newReceiver(t *testing.T, sources ...Source) *receiver {
	t.Helper()
	path := t.TempDir()
	if _, err := disk.Init(path); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return &receiver{t: t, disk: d, pull: &Pull{
		Client: newClient(t), Sources: func() []Source { return sources }, Progress: new(fetch.Progress),
	}}
}

func (r *receiver) openPart() *disk.Part {
	r.t.Helper()
	p, err := r.disk.OpenPart(r.t.Context(), parrot, disk.PartOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	return p
}

// pullsAndCommits fails the test unless the pull creates a ready copy with the content want.
func (r *receiver) pullsAndCommits(want []byte) {
	r.t.Helper()
	part := r.openPart()
	if err := r.pull.Into(r.t.Context(), part); err != nil {
		r.t.Fatal(err)
	}
	c, err := part.Commit(sha512Of(want))
	if err != nil || c.State != model.Ready {
		r.t.Fatalf("commit: %v, %v", c, err)
	}
	got, err := os.ReadFile((&testNode{disk: r.disk}).backing(parrot))
	if err != nil || !bytes.Equal(got, want) {
		r.t.Fatalf("the image differs: got %d bytes, want %d, error %v", len(got), len(want), err)
	}
}

func TestPullFromPeers(t *testing.T) {
	t.Parallel()
	for _, size := range []int{512, mib - 512, mib, 5*mib + 512, 40*mib + 4096} {
		for _, peers := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d bytes from %d", size, peers), func(t *testing.T) {
				want := image(size)
				var sources []Source
				for i := range peers {
					sources = append(sources, startNode(t, fmt.Sprintf("node%d", i)).put(t, parrot, want))
				}
				r := newReceiver(t, sources...)
				r.pullsAndCommits(want)
				received, least := r.pull.Progress.PeerBytes.Load(), dataBytes(want)
				most := least + model.ChunkFileSize(int64(size))
				if peers > 1 {
					most += least/20 + 2*mib // a lane is hedged if the CPU scheduler delays it
				}
				if received < least || received > most {
					t.Errorf("received %d bytes, want %d to %d", received, least, most)
				}
				if done := r.pull.Progress.Done.Load(); done != int64(size) {
					t.Errorf("progress is %d bytes, want %d", done, size)
				}
			})
		}
	}
}

// TestPullMemoryIsLimited checks the memory of sender and receiver for images of different sizes.
func TestPullMemoryIsLimited(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs more memory than the limit")
	}
	const size = 192 * mib
	d := newDisk(t)
	c := fillDisk(t, d, size, &sparseReader{size: size, stride: 64 * mib, random: rand.NewChaCha8([32]byte{3})})
	from := []*sender{startSender(t, "node1", d, "127.0.0.1:0"), startSender(t, "node2", d, "127.0.0.1:0")}
	done := pullInProcess(t, t.TempDir(), pullJob{
		Sources: []Source{from[0].source, from[1].source}, Size: size, Digest: c.SHA512,
	}, nil)
	for end, got := range map[string]int64{"receiver": done.RSS, "sender": peakRSS(t, from[0].Process.Pid)} {
		t.Logf("%s: %d MiB", end, got/mib)
		if got > 96*mib {
			t.Errorf("%s: %d MiB, want at most 96", end, got/mib)
		}
	}
}

func TestPullKeepsAMatchingPartialFile(t *testing.T) {
	t.Parallel()
	want := image(24 * mib)
	for i, from := range []struct {
		name   string
		source func(Source) disk.PartSource
		part   []byte
		keeps  bool // the partial file is kept
	}{
		{"from a pull", func(s Source) disk.PartSource {
			return disk.PartSource{Kind: model.PartFromPeers, ID: s.ManifestDigest.String(), Size: int64(len(want))}
		}, want[:9*mib], true},
		{"from a download", func(Source) disk.PartSource {
			return disk.PartSource{ID: "a hash", ETag: `"1"`, Size: int64(len(want))}
		}, want[:9*mib+100], true},
		{"from a download of unknown length", func(Source) disk.PartSource {
			return disk.PartSource{ID: "a hash", Size: -1}
		}, want[:9*mib], true},
		{"with other bytes", func(Source) disk.PartSource {
			return disk.PartSource{ID: "a hash", Size: int64(len(want))}
		}, append(bytes.Clone(want[:8*mib]), make([]byte, mib)...), false},
		{"of another size", func(Source) disk.PartSource {
			return disk.PartSource{ID: "a hash", Size: int64(len(want)) + 512}
		}, want[:9*mib], false},
		{"complete", func(s Source) disk.PartSource {
			return disk.PartSource{Kind: model.PartFromPeers, ID: s.ManifestDigest.String(), Size: int64(len(want))}
		}, want, true},
	} {
		if race.Enabled && i%3 != 0 {
			continue
		}
		t.Run(from.name, func(t *testing.T) {
			s := startNode(t, "node1").put(t, parrot, want)
			r := newReceiver(t, s)
			part := r.openPart()
			if err := part.Begin(from.source(s)); err != nil {
				t.Fatal(err)
			}
			if _, err := part.ReadFrom(bytes.NewReader(from.part)); err != nil {
				t.Fatal(err)
			}
			if err := part.Close(); err != nil {
				t.Fatal(err)
			}
			r.pullsAndCommits(want)
			rest := dataBytes(want)
			if from.keeps {
				rest = dataBytes(want[len(from.part)/mib*mib:])
			}
			manifest := model.ChunkFileSize(int64(len(want)))
			if received := r.pull.Progress.PeerBytes.Load(); received != rest+manifest {
				t.Errorf("received %d bytes, want %d", received, rest+manifest)
			}
		})
	}
}

func TestPullEndsWithItsContext(t *testing.T) {
	want := image(16 * mib)
	s := proxied(t, startNode(t, "node1").put(t, parrot, want), onData(stopAfter(5*mib/2, func(r *http.Request) { <-r.Context().Done() })))
	r := newReceiver(t, s)
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no longer declared")
	part := r.openPart()
	go func() {
		for r.pull.Progress.Done.Load() < 2*mib {
			<-time.After(time.Millisecond)
		}
		cancel(cause)
	}()
	start := time.Now()
	if err := r.pull.Into(ctx, part); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	if took := time.Since(start); took >= 30*time.Second { // a stall would end it then
		t.Errorf("ended after %v", took)
	}
	if part.Offset() != 2*mib {
		t.Errorf("the partial file has %d bytes, want %d", part.Offset(), 2*mib)
	}
	if from := r.disk.Stat(parrot).PartKind; from != model.PartFromPeers {
		t.Errorf("the partial file has the source %q", from)
	}
}

func TestPullObeysTheRateLimit(t *testing.T) {
	want := image(6 * mib)
	r := newReceiver(t, startNode(t, "node1").put(t, parrot, want), startNode(t, "node2").put(t, parrot, want))
	r.pull.Limit = 4 * mib
	start := time.Now()
	r.pullsAndCommits(want)
	if took, least := time.Since(start).Seconds(), float64(dataBytes(want))/float64(r.pull.Limit); took < 0.85*least {
		t.Errorf("took %.2f s at the limit, want at least %.2f", took, least)
	}
}
