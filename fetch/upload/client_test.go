package upload

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

func (r *rig) client() *Client { return &Client{Base: r.url, Transport: http.DefaultTransport} }

func order(c Content) Request {
	return Request{Image: parrot.Name, Content: c, Warn: func(error) {}}
}

func newFile(t *testing.T, f *os.File) *File {
	t.Helper()
	c, err := NewFile(f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSend(t *testing.T) {
	want := image(5, 17<<20+512)
	for name, content := range map[string]func(*testing.T) Content{
		"file":                   func(t *testing.T) Content { return newFile(t, file(t, want)) },
		"pipe":                   func(*testing.T) Content { return NewPipe(bytes.NewReader(want), -1) },
		"pipe of a known length": func(*testing.T) Content { return NewPipe(bytes.NewReader(want), int64(len(want))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			p := &fetch.Progress{}
			if err := r.client().Send(t.Context(), order(content(t)), p); err != nil {
				t.Fatal(err)
			}
			r.has(want)
			if p.Done.Load() != int64(len(want)) || p.UpstreamBytes.Load() >= int64(len(want)) {
				t.Errorf("progress: %d of %d bytes, %d were sent", p.Done.Load(), len(want), p.UpstreamBytes.Load())
			}
		})
	}
}

// A client that ends goes on later, with the same file only.
func TestSendLater(t *testing.T) {
	r := newRig(t)
	want := image(8, 30<<20)
	f := file(t, want)
	ctx, stop := context.WithCancel(t.Context())
	stopping := &stopAt{stop: stop, at: 3}
	c := &Client{Base: r.url, Transport: stopping}
	if err := c.Send(ctx, order(newFile(t, f)), &fetch.Progress{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("stopped: %v", err)
	}
	if all := r.sessions.list(); len(all) != 1 {
		t.Fatalf("there are %+v", all)
	}
	other := newFile(t, file(t, image(9, 30<<20)))
	if err := r.client().Send(t.Context(), order(other), &fetch.Progress{}); err == nil || !strings.Contains(err.Error(), "--restart ends it") {
		t.Errorf("another file: %v", err)
	}
	p := &fetch.Progress{}
	if err := r.client().Send(t.Context(), order(newFile(t, f)), p); err != nil {
		t.Fatal(err)
	}
	r.has(want)
	if p.UpstreamBytes.Load() > 22<<20 {
		t.Errorf("%d bytes were sent again", p.UpstreamBytes.Load())
	}
}

// A client may look for its upload a moment before the daemon has found it again.
func TestSendFoundLate(t *testing.T) {
	r := newRig(t)
	want := image(13, 20<<20)
	f := file(t, want)
	ctx, stop := context.WithCancel(t.Context())
	c := &Client{Base: r.url, Transport: &stopAt{stop: stop, at: 3}}
	if err := c.Send(ctx, order(newFile(t, f)), &fetch.Progress{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("stopped: %v", err)
	}
	c.Transport = &blind{}
	if err := c.Send(t.Context(), order(newFile(t, f)), &fetch.Progress{}); err != nil {
		t.Fatal(err)
	}
	r.has(want)
}

// blind sees no upload at the first look.
type blind struct{ looked bool }

func (b *blind) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodGet && q.URL.Path == Path && !b.looked {
		b.looked = true
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("[]"))}, nil
	}
	return http.DefaultTransport.RoundTrip(q)
}

type stopAt struct {
	stop context.CancelFunc
	at   int
}

func (s *stopAt) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodPatch {
		if s.at--; s.at == 0 {
			s.stop()
		}
	}
	return http.DefaultTransport.RoundTrip(q)
}

func TestSendAnew(t *testing.T) {
	r := newRig(t)
	r.create("1048576")
	want := image(10, 1<<20)
	o := order(newFile(t, file(t, want)))
	o.Restart = true
	if err := r.client().Send(t.Context(), o, &fetch.Progress{}); err != nil {
		t.Fatal(err)
	}
	r.has(want)
}

func TestSendRefused(t *testing.T) {
	short := bytes.NewReader(make([]byte, 1024))
	for words, o := range map[string]Request{
		"multiple of 512":              order(newFile(t, file(t, image(1, 1000)))),
		"an image of 0 bytes":          order(NewPipe(strings.NewReader(""), -1)),
		"an image of 1001 bytes":       order(NewPipe(strings.NewReader(strings.Repeat("x", 1001)), -1)),
		"1024 bytes came of 2048":      order(NewPipe(short, 2048)),
		"no image macaw":               {Image: "macaw", Content: newFile(t, file(t, image(1, 1024)))},
		"checksum mismatch: want 1111": {Image: "parrot", Digest: ones(t), Content: newFile(t, file(t, image(1, 1024)))},
	} {
		t.Run(words, func(t *testing.T) {
			r := newRig(t)
			err := r.client().Send(t.Context(), o, &fetch.Progress{})
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("the error is %v", err)
			}
			if o.Image == parrot.Name {
				r.empty()
			}
		})
	}
}

func ones(t *testing.T) disk.Digest {
	d, err := disk.ParseDigest(strings.Repeat("1", 128))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// What is written to while it is sent is not an image of anything.
func TestSendChanging(t *testing.T) {
	r := newRig(t)
	f := file(t, image(11, 12<<20))
	c := newFile(t, f)
	if err := os.Chtimes(f.Name(), time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	err := r.client().Send(t.Context(), order(c), &fetch.Progress{})
	if err == nil || !strings.Contains(err.Error(), "written to while it was sent") {
		t.Errorf("the error is %v", err)
	}
	r.empty()
}

// By itself, what is written through memory to a page that is dirty already does not move
// the file's time.
func TestSendMapped(t *testing.T) {
	r := newRig(t)
	path, memory := fetchtest.Mapped(t, image(11, 12<<20))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := newFile(t, f)
	memory[0], memory[len(memory)-1] = 'b', 'b'
	err = r.client().Send(t.Context(), order(c), &fetch.Progress{})
	if err == nil || !strings.Contains(err.Error(), "written to while it was sent") {
		t.Errorf("the error is %v", err)
	}
	r.empty()
}

func TestStore(t *testing.T) {
	r := newRig(t)
	want := image(12, 9<<20+512)
	f := file(t, want)
	ctx, stop := context.WithCancel(t.Context())
	store := func(ctx context.Context, p *fetch.Progress, c Content) error {
		part, err := r.disk.OpenPart(t.Context(), parrot, disk.PartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer part.Close()
		if err := FillLocal(ctx, part, order(c), p); err != nil {
			return err
		}
		_, err = part.Commit(disk.Digest{})
		return err
	}
	if err := store(ctx, &fetch.Progress{}, stopsAfter{newFile(t, f), stop}); !errors.Is(err, context.Canceled) {
		t.Fatalf("stopped: %v", err)
	}
	if r.disk.PartSource(parrot).ID != disk.PartFromUpload {
		t.Fatal("nothing is left to go on with")
	}
	p := &fetch.Progress{}
	if err := store(t.Context(), p, newFile(t, f)); err != nil {
		t.Fatal(err)
	}
	r.has(want)
}

// stopsAfter ends the work when its first piece is read.
type stopsAfter struct {
	Content
	stop context.CancelFunc
}

func (s stopsAfter) piece(at int64) (piece, error) {
	s.stop()
	return s.Content.piece(at)
}

// Several clients of one file disturb each other. What ends the request of one must not
// reach into the next one on its connection.
func TestSendTogether(t *testing.T) {
	r := newRig(t)
	want := image(16, 40<<20)
	f := file(t, want)
	r.create(fmt.Sprint(len(want)), named+",fingerprint "+base64.StdEncoding.EncodeToString([]byte(order(newFile(t, f)).fingerprint())))
	var clients sync.WaitGroup
	for range 3 {
		o := order(newFile(t, f))
		o.Warn = func(err error) {
			if _, known := errors.AsType[*httperror.Error](err); !known || strings.Contains(err.Error(), context.Canceled.Error()) {
				t.Errorf("interrupted: %v", err)
			}
		}
		clients.Go(func() {
			if err := r.client().Send(t.Context(), o, &fetch.Progress{}); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	r.has(want)
}

// faulty drops requests, or their answers, by chance, and lets the daemon start again.
type faulty struct {
	r    *rig
	dice *rand.Rand
}

var errFault = errors.New("connection reset by a test")

func (f *faulty) RoundTrip(q *http.Request) (*http.Response, error) {
	dice := f.dice.IntN(12)
	switch {
	case dice == 0:
		return nil, errFault
	case dice == 1 && q.Method == http.MethodPatch && q.ContentLength > 0: // half of it arrives
		half := q.Clone(q.Context())
		half.Header.Del("Upload-Checksum")
		half.Body = io.NopCloser(io.MultiReader(io.LimitReader(q.Body, q.ContentLength/2), broken{}))
		_, err := http.DefaultTransport.RoundTrip(half)
		return nil, err
	case dice == 2 && q.Method == http.MethodPatch && q.ContentLength > 0: // it is spoilt
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return nil, err
		}
		body[f.dice.IntN(len(body))] ^= 1
		q = q.Clone(q.Context())
		q.Body = io.NopCloser(bytes.NewReader(body))
	}
	a, err := http.DefaultTransport.RoundTrip(q)
	switch {
	case err == nil && dice == 3: // the answer does not
		a.Body.Close()
		return nil, errFault
	case err == nil && dice == 4 && len(f.r.sessions.list()) > 0:
		f.r.restart()
	}
	return a, err
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errFault }

func TestSendThroughFaults(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			want := image(seed, int(13+seed)<<20+512)
			var content Content = newFile(t, file(t, want))
			if seed%2 == 1 {
				content = NewPipe(bytes.NewReader(want), -1)
			}
			c := &Client{Base: r.url, Transport: &faulty{r, rand.New(rand.NewPCG(seed, 7))}}
			o := order(content)
			o.Warn = func(err error) { t.Logf("%v", err) }
			err := c.Send(t.Context(), o, &fetch.Progress{})
			for errors.Is(err, errFault) { // before the first answer nothing is tried again
				err = c.Send(t.Context(), o, &fetch.Progress{})
			}
			if err != nil && !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
			r.has(want)
		})
	}
}

// The end of a pipe is told by a request of its own. When that is lost, the daemon has all
// bytes and does not know it: they are no image yet.
func TestSendEndLost(t *testing.T) {
	r := newRig(t)
	want := image(14, 2<<20)
	c := &Client{Base: r.url, Transport: &endless{}}
	if err := c.Send(t.Context(), order(NewPipe(bytes.NewReader(want), -1)), &fetch.Progress{}); err != nil {
		t.Fatal(err)
	}
	if all := r.sessions.list(); len(all) > 0 {
		t.Fatalf("the client says that the image is ready, and the daemon waits: %+v", all)
	}
	r.has(want)
}

// endless loses the first request that says how long the image is.
type endless struct{ lost bool }

func (e *endless) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Header.Get("Upload-Length") != "" && !e.lost {
		e.lost = true
		return nil, errFault
	}
	return http.DefaultTransport.RoundTrip(q)
}

// dead answers everything but what brings bytes.
type dead struct{}

func (dead) RoundTrip(q *http.Request) (*http.Response, error) {
	a := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("[]"))}
	switch q.Method {
	case http.MethodPost:
		a.StatusCode = http.StatusCreated
		a.Header.Set("Location", Path+"/one")
	case http.MethodPatch:
		return nil, errFault
	}
	a.Header.Set("Upload-Offset", "0")
	a.Header.Set("Upload-Length", "1024")
	return a, nil
}

// That a daemon says how far an upload is does not bring it any further.
func TestSendGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 2*patience)
		defer stop()
		c := &Client{Base: "http://daemon", Transport: dead{}}
		asked := 0
		o := order(NewPipe(bytes.NewReader(make([]byte, 1024)), 1024))
		o.Warn = func(error) { asked++ }
		began := time.Now()
		if err := c.Send(ctx, o, &fetch.Progress{}); !errors.Is(err, errFault) || time.Since(began) >= 2*patience || asked > 200 {
			t.Errorf("after %v and %d failures: %v", time.Since(began), asked, err)
		}
	})
}

// Who stops an upload is not to wait for a pipe that brings nothing.
func TestSendStoppedAtASilentPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		silent, w := io.Pipe()
		time.AfterFunc(time.Hour, func() { w.Close() })
		began := time.Now()
		c := &Client{Base: "http://daemon", Transport: dead{}}
		if err := c.Send(ctx, order(NewPipe(silent, -1)), &fetch.Progress{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		w.Close()
	})
}
