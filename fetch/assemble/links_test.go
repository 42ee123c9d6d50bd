package assemble

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// The providers in this file are functions, for pulls with fake time. Their image is generated while it
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

// newDisk returns a disk.
func newDisk(t *testing.T) *disk.Disk {
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
	return d
}

// busy is an error that implements Busy.
type busy time.Duration

func (b busy) Error() string { return "busy: the sending limit is reached" }

func (b busy) RetryAfter() time.Duration { return time.Duration(b) }

// numberedManifest returns the chunk manifest of an image with the given number of chunks.
func numberedManifest(t *testing.T, chunks int64) *disk.Manifest {
	t.Helper()
	p, err := newDisk(t).OpenPart(t.Context(), ident.ID{Name: "parrot", UUID: "0a1b2c3d"}, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var file bytes.Buffer
	file.WriteString("BIMCHUNK\x00\x00\x00\x01\x00\x10\x00\x00") // the header of SHA-256 and chunks of 1 MiB
	for n := range chunks {
		h := sha256.New()
		if _, err := io.Copy(h, &numberedReader{n * mib, (n + 1) * mib}); err != nil {
			t.Fatal(err)
		}
		file.Write(h.Sum(nil))
	}
	h := ident.SHA256.New()
	h.Write(file.Bytes())
	m, err := p.ReceiveManifest(&file, chunks*mib, ident.SHA256.Digest(h))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// fakeLink is a provider that sends at a constant rate.
type fakeLink struct {
	rate         float64       // bytes per second; 0: the provider never responds
	appearsAfter time.Duration // time after the start before which the provider does not exist
	stallsAfter  time.Duration // time after the start; 0: the provider never stalls

	busy    bool // every second response is a 429
	refuses bool // every response is an error
	wrong   bool // sends the bytes of another chunk

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
		return nil, busy(time.Second)
	}
	switch {
	case l.refuses:
		return nil, errors.New("refused")
	case l.wrong:
		from, to = from+mib, to+mib
	case l.rate == 0:
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
		return 0, context.Cause(r.ctx)
	}
	return n, err
}

func (r *linkReader) Close() error { r.link.open--; return nil }

// transfer is an assembly with fake providers, as a sync has it.
type transfer struct {
	*Assembly
	manifest    *disk.Manifest
	links       map[string]*fakeLink // by node
	pulls       int64                // that share the memory
	consumeTime time.Duration        // time that the consumer needs for a chunk
	appended    int64                // number of chunks
	buffers     map[*byte]bool       // all buffers that the consumer has received
	limiter     *rate.Limiter
	upstream    *fakeLink

	// open returns the response of a provider; nil: its link does.
	open func(ctx context.Context, l *fakeLink, from, to int64) (io.ReadCloser, error)
}

const (
	mib          = 1 << 20
	patience     = 30 * time.Second
	firstBackoff = 5 * time.Second
	windowChunks = 22
)

// newRepair returns a function that fetches chunk n of the numbered image, as a repair does, from a single provider. open
// returns the responses of the provider.
func newRepair(open func(request int, from, to int64) (io.ReadCloser, error)) func(ctx context.Context, n int64) error {
	requests, health := 0, &Health{First: firstBackoff, Max: 5 * time.Minute, Useful: 4 * mib}
	return func(ctx context.Context, n int64) error {
		var chunk bytes.Buffer
		_, _ = chunk.ReadFrom(&numberedReader{n * mib, (n + 1) * mib})
		t := newTransfer(nil, map[string]*fakeLink{"node1": {}})
		t.appended, t.Health = n, health
		t.Plan = Single(Segment{n * mib, mib, disk.NewChunks.Hash(chunk.Bytes())})
		t.open = func(_ context.Context, _ *fakeLink, from, to int64) (io.ReadCloser, error) {
			requests++
			return open(requests, from, to)
		}
		return t.Run(ctx, n*mib)
	}
}

func newTransfer(m *disk.Manifest, links map[string]*fakeLink) *transfer {
	t := &transfer{manifest: m, links: links, pulls: 1, buffers: map[*byte]bool{}}
	for _, l := range links {
		l.start = time.Now()
	}
	t.Assembly = &Assembly{
		Plan: ByManifest(m), Sink: t, Candidates: t.candidates, Progress: new(fetch.Progress),
		Health:       &Health{First: firstBackoff, Max: 5 * time.Minute, Useful: 4 * mib},
		Window:       func() int64 { return min(windowChunks, max(6, 2*windowChunks/t.pulls)) * mib },
		ReserveAfter: 10 * time.Second, Patience: patience,
	}
	return t
}

func (t *transfer) candidates() (all []Candidate) {
	for name, l := range t.links {
		if time.Since(l.start) >= l.appearsAfter {
			all = append(all, t.candidate(name+"/disk1", l, &t.Progress.PeerBytes))
		}
	}
	if t.upstream != nil {
		s := t.candidate("upstream", t.upstream, &t.Progress.UpstreamBytes)
		s.Reserve = true
		all = append(all, s)
	}
	return all
}

func (t *transfer) candidate(name string, l *fakeLink, counter *atomic.Int64) Candidate {
	p := Open(func(ctx context.Context, from, to int64) (io.ReadCloser, error) {
		open := l.openRange
		if t.open != nil && counter == &t.Progress.PeerBytes {
			open = func(ctx context.Context, from, to int64) (io.ReadCloser, error) { return t.open(ctx, l, from, to) }
		}
		ctx, cancel := context.WithCancelCause(ctx)
		silent := time.AfterFunc(10*time.Second, func() { cancel(errors.New("no response in 10s")) })
		b, err := open(ctx, from, to)
		if silent.Stop(); err != nil {
			cancel(nil)
			return nil, err
		}
		return body{fetch.StallReader(b, 10*time.Second, cancel), b.Close}, nil
	})
	return Candidate{
		Provider: Limited(Counted(p, counter), t.limiter), Name: name, Host: name,
		Invalid: func(s Segment) error { return fmt.Errorf("%s sent wrong bytes at %d", name, s.Offset) },
	}
}

// AppendZeros implements Sink.
func (t *transfer) AppendZeros(int64) error { return errors.New("the image has no zeros") }

// AppendChunk implements Sink.
func (t *transfer) AppendChunk(buf []byte, _ int64, _ disk.ChunkHash) ([]byte, error) {
	if got := int64(binary.BigEndian.Uint64(buf)) - 1; got != t.appended {
		return buf, fmt.Errorf("chunk %d has the bytes of %d", t.appended, got)
	}
	t.appended++
	t.buffers[&buf[0]] = true
	time.Sleep(t.consumeTime)
	return buf, nil
}

// run receives the image and returns the duration.
func (t *transfer) run(ctx context.Context) (time.Duration, error) {
	start := time.Now()
	err := t.Run(ctx, 0)
	return time.Since(start), err
}

// wastePercent returns the number of bytes that were received in excess of the image size, in percent
// of the size.
func (t *transfer) wastePercent() float64 {
	received := t.Progress.PeerBytes.Load() + t.Progress.UpstreamBytes.Load()
	return 100 * float64(received-t.manifest.Size()) / float64(t.manifest.Size())
}
