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

// numbered reads the image from from on.
type numbered struct{ at, to int64 }

func (r *numbered) Read(p []byte) (int, error) {
	if r.at == r.to {
		return 0, io.EOF
	}
	n := r.at / mib
	p = p[:min(int64(len(p)), (n+1)*mib-r.at, r.to-r.at)]
	word := binary.BigEndian.AppendUint64(nil, uint64(n+1))
	for i := range min(8, len(p)) {
		p[i] = word[(r.at+int64(i))%8]
	}
	for done := 8; done < len(p); done *= 2 {
		copy(p[done:], p[:done])
	}
	r.at += int64(len(p))
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
		if _, err := io.Copy(h, &numbered{n * mib, (n + 1) * mib}); err != nil {
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

// link sends at a rate, in bytes per second.
type link struct {
	rate   float64       // 0: not even an answer
	since  time.Duration // from the beginning: before, there is no such source
	silent time.Duration // when it falls silent; 0: never

	busy bool // it refuses every other request for a second

	begun      time.Time
	asked      int
	open, most int // requests at this moment, and at any
}

// pace returns how long the link takes for n bytes.
func (l *link) pace(n int) time.Duration {
	if l.silent > 0 && time.Since(l.begun) >= l.silent {
		return time.Hour
	}
	return time.Duration(float64(n) / l.rate * float64(time.Second))
}

func (l *link) send(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	if l.asked++; l.busy && l.asked%2 == 0 {
		return nil, &busyError{retryAfter: time.Second}
	}
	if l.rate == 0 {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	l.open++
	l.most = max(l.most, l.open)
	return &slowly{numbered{from, to}, l, ctx}, nil
}

type slowly struct {
	numbered
	link *link
	ctx  context.Context
}

func (s *slowly) Read(p []byte) (int, error) {
	n, err := s.numbered.Read(p[:min(len(p), 64<<10, max(1, int(s.link.rate)))])
	select {
	case <-time.After(s.link.pace(n)):
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
	return n, err
}

func (s *slowly) Close() error { s.link.open--; return nil }

// simulated is a pull from links, by the names of their nodes.
type simulated struct {
	*transfer
	manifest *disk.Manifest
	links    map[string]*link
	consume  time.Duration // that the part takes for a chunk
	got      int64
	buffers  map[*byte]bool
}

func simulate(m *disk.Manifest, links map[string]*link) *simulated {
	p := &Pull{Client: new(Client), Progress: new(fetch.Progress)}
	s := &simulated{transfer: p.newTransfer(), manifest: m, links: links, buffers: map[*byte]bool{}}
	for _, l := range links {
		l.begun = time.Now()
	}
	p.Sources = func() []Source {
		var all []Source
		for name, l := range s.links {
			if time.Since(l.begun) < l.since {
				continue
			}
			all = append(all, Source{Address: Address{Node: name}, Disk: "disk1"})
		}
		return all
	}
	s.openRange = func(ctx context.Context, from Source, at, to int64) (io.ReadCloser, error) {
		return s.links[from.Node].send(ctx, at, to)
	}
	return s
}

// run pulls and returns how long it took.
func (s *simulated) run(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	err := s.transfer.run(ctx, s.manifest, 0, func(n int64, buf []byte) ([]byte, error) {
		if n != s.got {
			return buf, fmt.Errorf("chunk %d came in place of %d", n, s.got)
		}
		if got := binary.BigEndian.Uint64(buf); got != uint64(n+1) {
			return buf, fmt.Errorf("chunk %d has the bytes of %d", n, got-1)
		}
		s.got++
		s.buffers[&buf[0]] = true
		time.Sleep(s.consume)
		return buf, nil
	})
	return time.Since(begun), err
}

// twice is how many of the bytes that crossed the network were of no use, in percent.
func (s *simulated) twice() float64 {
	moved := s.progress.PeerBytes.Load() + s.progress.UpstreamBytes.Load()
	return 100 * float64(moved-s.manifest.Size()) / float64(s.manifest.Size())
}
