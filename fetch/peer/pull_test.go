package peer

import (
	"bytes"
	"crypto/sha512"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/race"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const mib = 1 << 20

// image returns size bytes, random but for what is zero in every third 2 MiB.
func image(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{7}).Read(b)
	for at := 4 * mib; at < size; at += 6 * mib {
		clear(b[at:min(at+2*mib, size)])
	}
	return b
}

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

func sha512Of(b []byte) disk.Digest {
	h := sha512.New()
	h.Write(b)
	return disk.SHA512.Sum(h)
}

// receiver is a disk that pulls.
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

func (r *receiver) part() *disk.Part {
	r.t.Helper()
	p, err := r.disk.OpenPart(r.t.Context(), parrot, disk.PartOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	return p
}

// gets fails the test unless the pull makes a ready image of want.
func (r *receiver) gets(want []byte) {
	r.t.Helper()
	part := r.part()
	if err := r.pull.Into(r.t.Context(), part, int64(len(want))); err != nil {
		r.t.Fatal(err)
	}
	c, err := part.Commit(sha512Of(want))
	if err != nil || c.State != disk.Ready {
		r.t.Fatalf("commit: %v, %v", c, err)
	}
	got, err := os.ReadFile((&node{disk: r.disk}).backing(parrot))
	if err != nil || !bytes.Equal(got, want) {
		r.t.Fatalf("the image differs: %d bytes of %d, error %v", len(got), len(want), err)
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
				r.gets(want)
				moved, least := r.pull.Progress.Peers.Load(), dataBytes(want)
				most := least + 32*(1+int64(size)/mib) // the manifest
				if peers > 1 {
					most += least/20 + 2*mib // where a process that does not get its turn is overtaken
				}
				if moved < least || moved > most {
					t.Errorf("%d bytes crossed the network, want %d to %d", moved, least, most)
				}
				if done := r.pull.Progress.Done.Load(); done != int64(size) {
					t.Errorf("done are %d bytes of %d", done, size)
				}
			})
		}
	}
}

// TestPullTakesLittleMemory: the same for every image, at both ends.
func TestPullTakesLittleMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector takes more than what is measured")
	}
	const size = 192 * mib
	d := newDisk(t)
	c := fillDisk(t, d, size, &strided{size: size, stride: 64 * mib, random: rand.NewChaCha8([32]byte{3})})
	from := []*sender{startSender(t, "node1", d, "127.0.0.1:0"), startSender(t, "node2", d, "127.0.0.1:0")}
	done := pullInProcess(t, t.TempDir(), order{
		Sources: []Source{from[0].source, from[1].source}, Size: size, Digest: c.SHA512,
	}, nil)
	for end, got := range map[string]int64{"receiver": done.RSS, "sender": resident(t, from[0].Process.Pid)} {
		t.Logf("%s: %d MiB", end, got/mib)
		if got > 96*mib {
			t.Errorf("%s takes %d MiB, want at most 96", end, got/mib)
		}
	}
}
