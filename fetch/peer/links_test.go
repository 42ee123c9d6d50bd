package peer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// The sources of a pull that runs in a time of its own are functions, and its image
// is made as it is read: chunk n is the number n again and again.

const mbit = 1_000_000 / 8

// numberedReader reads the image from from on.
type numberedReader struct{ offset, end int64 }

func (r *numberedReader) Read(p []byte) (int, error) {
	if r.offset == r.end {
		return 0, io.EOF
	}
	n := r.offset / mib
	p = p[:min(int64(len(p)), (n+1)*mib-r.offset, r.end-r.offset)]
	word := binary.BigEndian.AppendUint64(nil, uint64(n+1))
	for i := range min(8, len(p)) {
		p[i] = word[(r.offset+int64(i))%8]
	}
	for done := 8; done < len(p); done *= 2 {
		copy(p[done:], p[:done])
	}
	r.offset += int64(len(p))
	return len(p), nil
}

// numberedManifest is that of the image with so many chunks.
func numberedManifest(t *testing.T, chunks int64) *disk.Manifest {
	t.Helper()
	p, err := newDisk(t).OpenPart(t.Context(), parrot, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var sums bytes.Buffer
	for n := range chunks {
		h := sha256.New()
		if _, err := io.Copy(h, &numberedReader{n * mib, (n + 1) * mib}); err != nil {
			t.Fatal(err)
		}
		sums.Write(h.Sum(nil))
	}
	h := disk.SHA256.New()
	h.Write(sums.Bytes())
	m, err := p.ReceiveManifest(&sums, chunks*mib, disk.SHA256.Digest(h))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// fakeLink sends at a rate, in bytes per second.
type fakeLink struct {
	rate         float64       // 0: not even an answer
	appearsAfter time.Duration // from the beginning: before, there is no such source
	stallsAfter  time.Duration // when it falls silent; 0: never

	busy bool // it refuses every other request for a second

	start         time.Time
	requests      int
	open, maxOpen int // requests at this moment, and at any
}

// timeFor returns how long the link takes for n bytes.
func (l *fakeLink) timeFor(n int) time.Duration {
	if l.stallsAfter > 0 && time.Since(l.start) >= l.stallsAfter {
		return time.Hour
	}
	return time.Duration(float64(n) / l.rate * float64(time.Second))
}

func (l *fakeLink) openRange(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	if l.requests++; l.busy && l.requests%2 == 0 {
		return nil, &busyError{retryAfter: time.Second}
	}
	if l.rate == 0 {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	l.open++
	l.maxOpen = max(l.maxOpen, l.open)
	return &linkReader{numberedReader{from, to}, l, ctx}, nil
}

type linkReader struct {
	numberedReader
	link *fakeLink
	ctx  context.Context
}

func (s *linkReader) Read(p []byte) (int, error) {
	n, err := s.numberedReader.Read(p[:min(len(p), 64<<10, max(1, int(s.link.rate)))])
	select {
	case <-time.After(s.link.timeFor(n)):
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
	return n, err
}

func (s *linkReader) Close() error { s.link.open--; return nil }

// simulatedTransfer is a pull from links, by the names of their nodes.
type simulatedTransfer struct {
	*transfer
	manifest    *disk.Manifest
	links       map[string]*fakeLink
	consumeTime time.Duration // that the part takes for a chunk
	received    int64
	buffers     map[*byte]bool
}

func simulate(m *disk.Manifest, links map[string]*fakeLink) *simulatedTransfer {
	p := &Pull{Client: new(Client), Progress: new(fetch.Progress)}
	s := &simulatedTransfer{transfer: p.newTransfer(), manifest: m, links: links, buffers: map[*byte]bool{}}
	for _, l := range links {
		l.start = time.Now()
	}
	p.Sources = func() []Source {
		var all []Source
		for name, l := range s.links {
			if time.Since(l.start) < l.appearsAfter {
				continue
			}
			all = append(all, Source{Address: Address{Node: name}, Disk: "disk1"})
		}
		return all
	}
	s.openRange = func(ctx context.Context, from Source, at, to int64) (io.ReadCloser, error) {
		return s.links[from.Node].openRange(ctx, at, to)
	}
	return s
}

// run pulls and returns how long it took.
func (s *simulatedTransfer) run(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	err := s.transfer.run(ctx, s.manifest, 0, func(n int64, buf []byte) ([]byte, error) {
		if n != s.received {
			return buf, fmt.Errorf("chunk %d came in place of %d", n, s.received)
		}
		if got := binary.BigEndian.Uint64(buf); got != uint64(n+1) {
			return buf, fmt.Errorf("chunk %d has the bytes of %d", n, got-1)
		}
		s.received++
		s.buffers[&buf[0]] = true
		time.Sleep(s.consumeTime)
		return buf, nil
	})
	return time.Since(begun), err
}

// wastePercent is how many of the bytes that crossed the network were of no use, in percent.
func (s *simulatedTransfer) wastePercent() float64 {
	moved := s.progress.PeerBytes.Load() + s.progress.UpstreamBytes.Load()
	return 100 * float64(moved-s.manifest.Size()) / float64(s.manifest.Size())
}
