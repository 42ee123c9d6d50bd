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
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// The sources in this file are functions, for pulls with fake time. Their image is generated while it
// is read: chunk n consists of the number n+1, repeated.

const mbit = 1_000_000 / 8

// numberedReader reads the bytes [offset, end) of the image.
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

// numberedManifest returns the chunk manifest of an image with the given number of chunks.
func numberedManifest(t *testing.T, chunks int64) *disk.Manifest {
	t.Helper()
	p, err := newDisk(t).OpenPart(t.Context(), parrot, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var hashes bytes.Buffer
	for n := range chunks {
		h := sha256.New()
		if _, err := io.Copy(h, &numberedReader{n * mib, (n + 1) * mib}); err != nil {
			t.Fatal(err)
		}
		hashes.Write(h.Sum(nil))
	}
	h := ident.SHA256.New()
	h.Write(hashes.Bytes())
	m, err := p.ReceiveManifest(&hashes, chunks*mib, ident.SHA256.Digest(h))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// fakeLink is a source that sends at a constant rate.
type fakeLink struct {
	rate         float64       // bytes per second; 0: the source never responds
	appearsAfter time.Duration // time after the start before which the source does not exist
	stallsAfter  time.Duration // time after the start; 0: the source never stalls

	busy bool // every second response is a 429

	start         time.Time
	requests      int
	open, maxOpen int // pending requests, and their maximum
}

// timeFor returns the time that the link needs for n bytes.
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

func (r *linkReader) Read(p []byte) (int, error) {
	n, err := r.numberedReader.Read(p[:min(len(p), 64<<10, max(1, int(r.link.rate)))])
	select {
	case <-time.After(r.link.timeFor(n)):
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
	return n, err
}

func (r *linkReader) Close() error { r.link.open--; return nil }

// simulatedTransfer is a transfer with fake sources.
type simulatedTransfer struct {
	*transfer
	manifest    *disk.Manifest
	links       map[string]*fakeLink // by node
	consumeTime time.Duration        // time that the consumer needs for a chunk
	received    int64                // number of received chunks
	buffers     map[*byte]bool       // all buffers that the consumer has received
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

// run receives the image and returns the duration.
func (s *simulatedTransfer) run(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := s.transfer.run(ctx, s.manifest, nil, 0, func(n int64, buf []byte) ([]byte, error) {
		if n != s.received {
			return buf, fmt.Errorf("received chunk %d instead of %d", n, s.received)
		}
		if got := binary.BigEndian.Uint64(buf); got != uint64(n+1) {
			return buf, fmt.Errorf("chunk %d has the bytes of %d", n, got-1)
		}
		s.received++
		s.buffers[&buf[0]] = true
		time.Sleep(s.consumeTime)
		return buf, nil
	})
	return time.Since(start), err
}

// wastePercent returns the number of bytes that were received in excess of the image size, in percent
// of the size.
func (s *simulatedTransfer) wastePercent() float64 {
	received := s.progress.PeerBytes.Load() + s.progress.UpstreamBytes.Load()
	return 100 * float64(received-s.manifest.Size()) / float64(s.manifest.Size())
}
