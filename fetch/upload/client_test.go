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
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

func (r *fixture) client() *Client { return &Client{Base: r.url, Transport: http.DefaultTransport} }

func newRequest(c Content) Request {
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
	want := testImage(5, 17<<20+512)
	for name, content := range map[string]func(*testing.T) Content{
		"file":                   func(t *testing.T) Content { return newFile(t, testFile(t, want)) },
		"pipe":                   func(*testing.T) Content { return NewPipe(bytes.NewReader(want), -1) },
		"pipe of a known length": func(*testing.T) Content { return NewPipe(bytes.NewReader(want), int64(len(want))) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			p := &fetch.Progress{}
			if err := r.client().Send(t.Context(), newRequest(content(t)), p); err != nil {
				t.Fatal(err)
			}
			r.wantImage(want)
			if p.Done.Load() != int64(len(want)) || p.UpstreamBytes.Load() >= int64(len(want)) {
				t.Errorf("progress: %d of %d bytes, %d were sent", p.Done.Load(), len(want), p.UpstreamBytes.Load())
			}
		})
	}
}

// TestSendContinuesInterruptedUpload checks that a client can resume an interrupted upload, but only
// with the same file.
func TestSendContinuesInterruptedUpload(t *testing.T) {
	r := newFixture(t)
	want := testImage(8, 30<<20)
	f := testFile(t, want)
	ctx, stop := context.WithCancel(t.Context())
	stopping := &cancelingTransport{stop: stop, at: 3}
	c := &Client{Base: r.url, Transport: stopping}
	if err := c.Send(ctx, newRequest(newFile(t, f)), &fetch.Progress{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("canceled: %v", err)
	}
	if all := r.sessions.list(); len(all) != 1 {
		t.Fatalf("the uploads are %+v", all)
	}
	other := newFile(t, testFile(t, testImage(9, 30<<20)))
	if err := r.client().Send(t.Context(), newRequest(other), &fetch.Progress{}); err == nil || !strings.Contains(err.Error(), "use --restart") {
		t.Errorf("another file: %v", err)
	}
	p := &fetch.Progress{}
	if err := r.client().Send(t.Context(), newRequest(newFile(t, f)), p); err != nil {
		t.Fatal(err)
	}
	r.wantImage(want)
	if p.UpstreamBytes.Load() > 22<<20 {
		t.Errorf("%d bytes were sent again", p.UpstreamBytes.Load())
	}
}

// TestSendFindsUploadAfterConflict: the daemon may find an interrupted upload only after the client
// has listed the uploads.
func TestSendFindsUploadAfterConflict(t *testing.T) {
	r := newFixture(t)
	want := testImage(13, 20<<20)
	f := testFile(t, want)
	ctx, stop := context.WithCancel(t.Context())
	c := &Client{Base: r.url, Transport: &cancelingTransport{stop: stop, at: 3}}
	if err := c.Send(ctx, newRequest(newFile(t, f)), &fetch.Progress{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("canceled: %v", err)
	}
	c.Transport = &hidingTransport{}
	if err := c.Send(t.Context(), newRequest(newFile(t, f)), &fetch.Progress{}); err != nil {
		t.Fatal(err)
	}
	r.wantImage(want)
}

// hidingTransport returns an empty first list of uploads.
type hidingTransport struct{ listed bool }

func (b *hidingTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodGet && q.URL.Path == Path && !b.listed {
		b.listed = true
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("[]"))}, nil
	}
	return http.DefaultTransport.RoundTrip(q)
}

type cancelingTransport struct {
	stop context.CancelFunc
	at   int
}

func (s *cancelingTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Method == http.MethodPatch {
		if s.at--; s.at == 0 {
			s.stop()
		}
	}
	return http.DefaultTransport.RoundTrip(q)
}

func TestSendRestart(t *testing.T) {
	r := newFixture(t)
	r.create("1048576")
	want := testImage(10, 1<<20)
	o := newRequest(newFile(t, testFile(t, want)))
	o.Restart = true
	if err := r.client().Send(t.Context(), o, &fetch.Progress{}); err != nil {
		t.Fatal(err)
	}
	r.wantImage(want)
}

func TestSendErrors(t *testing.T) {
	short := bytes.NewReader(make([]byte, 1024))
	for words, o := range map[string]Request{
		"the file is empty":            newRequest(NewPipe(strings.NewReader(""), -1)),
		"size 1001 is not a multiple":  newRequest(NewPipe(strings.NewReader(strings.Repeat("x", 1001)), -1)),
		"got 1024 bytes of 2048":       newRequest(NewPipe(short, 2048)),
		"file to upload: unexpected":   newRequest(NewPipe(io.MultiReader(bytes.NewReader(make([]byte, 1024)), iotest.ErrReader(io.ErrUnexpectedEOF)), -1)),
		"no image macaw":               {Image: "macaw", Content: newFile(t, testFile(t, testImage(1, 1024)))},
		"checksum mismatch: want 1111": {Image: "parrot", Digest: digestOfOnes(t), Content: newFile(t, testFile(t, testImage(1, 1024)))},
	} {
		t.Run(words, func(t *testing.T) {
			r := newFixture(t)
			err := r.client().Send(t.Context(), o, &fetch.Progress{})
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("the error is %v", err)
			}
			if o.Image == parrot.Name {
				r.wantEmptyDisk()
			}
		})
	}
}

// A file that has no size of an image is refused before it is sent, with what it is if that is known.
func TestNewFileRefusesSizes(t *testing.T) {
	for words, content := range map[string]string{
		"the file is empty":                          "",
		"the file is packed with gzip":               "\x1f\x8b\x08" + strings.Repeat("x", 1000),
		"size 1000 is not a multiple of 512 bytes":   strings.Repeat("x", 1000),
		"size 200000 is not a multiple of 512 bytes": "QFI\xfb\x00\x00\x00\x03" + strings.Repeat("x", 200_000-8),
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "image.img"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		_, err = NewFile(f)
		if refusal, ok := errors.AsType[*disk.FormatError](err); !ok || refusal.Reason != words || refusal.Hint == "" {
			t.Errorf("%s: %v", words, err)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(q *http.Request) (*http.Response, error) { return f(q) }

// A proxy refuses pieces, as nginx does without client_max_body_size. An upload that has no bytes then does not stay.
func TestProxyRefusesPieces(t *testing.T) {
	for refused := range 2 {
		r := newFixture(t)
		c, piece := r.client(), 0
		c.Transport = roundTrip(func(q *http.Request) (*http.Response, error) {
			if q.Method == http.MethodPatch {
				if piece++; piece > refused {
					return &http.Response{StatusCode: 413, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("<html>"))}, nil
				}
			}
			return http.DefaultTransport.RoundTrip(q)
		})
		err := c.Send(t.Context(), newRequest(newFile(t, testFile(t, bytes.Repeat([]byte("image "), 1<<20)))), &fetch.Progress{})
		if err == nil || !strings.Contains(err.Error(), "a proxy, not the daemon, responds 413") {
			t.Errorf("the error is %v", err)
		}
		if left := len(r.sessions.list()); left != refused {
			t.Errorf("after %d pieces, %d uploads are left", refused, left)
		}
	}
}

func digestOfOnes(t *testing.T) ident.Digest {
	d, err := ident.ParseDigest(strings.Repeat("1", 128))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestFileMayBeClosedWhileItIsRead is for the race detector: Send returns without waiting for the piece
// that it reads ahead, and its caller closes the file.
func TestFileMayBeClosedWhileItIsRead(t *testing.T) {
	for range 20 {
		f := testFile(t, testImage(11, 1<<20))
		c := newFile(t, f)
		done := make(chan error)
		go func() {
			for {
				if _, err := c.piece(0); err != nil {
					done <- err
					return
				}
			}
		}()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, os.ErrClosed) {
			t.Fatalf("the error is %v", err)
		}
	}
}

// TestSendOfChangedFileFails: a file that changes while it is sent does not give a valid image.
func TestSendOfChangedFileFails(t *testing.T) {
	r := newFixture(t)
	f := testFile(t, testImage(11, 12<<20))
	c := newFile(t, f)
	if err := os.Chtimes(f.Name(), time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	err := r.client().Send(t.Context(), newRequest(c), &fetch.Progress{})
	if err == nil || !strings.Contains(err.Error(), "modified while it was sent") {
		t.Errorf("the error is %v", err)
	}
	r.wantEmptyDisk()
}

// TestSendOfFileChangedThroughMappingFails: a write through a memory mapping to a dirty page does not
// change the modification time.
func TestSendOfFileChangedThroughMappingFails(t *testing.T) {
	r := newFixture(t)
	path, memory := fetchtest.Mapped(t, testImage(11, 12<<20))
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := newFile(t, f)
	memory[0], memory[len(memory)-1] = 'b', 'b'
	err = r.client().Send(t.Context(), newRequest(c), &fetch.Progress{})
	if err == nil || !strings.Contains(err.Error(), "modified while it was sent") {
		t.Errorf("the error is %v", err)
	}
	r.wantEmptyDisk()
}

func TestFillLocal(t *testing.T) {
	r := newFixture(t)
	want := testImage(12, 9<<20+512)
	f := testFile(t, want)
	ctx, stop := context.WithCancel(t.Context())
	store := func(ctx context.Context, p *fetch.Progress, c Content) error {
		part, err := r.disk.OpenPart(t.Context(), parrot, disk.PartOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer part.Close()
		if err := FillLocal(ctx, part, newRequest(c), p); err != nil {
			return err
		}
		_, err = part.Commit(ident.Digest{})
		return err
	}
	if err := store(ctx, &fetch.Progress{}, failingContent{newFile(t, f), stop}); !errors.Is(err, context.Canceled) {
		t.Fatalf("canceled: %v", err)
	}
	if r.disk.PartSource(parrot).Kind != model.PartFromUpload {
		t.Fatal("no partial file is left to continue")
	}
	p := &fetch.Progress{}
	if err := store(t.Context(), p, newFile(t, f)); err != nil {
		t.Fatal(err)
	}
	r.wantImage(want)
}

// failingContent cancels the context when its first piece is read.
type failingContent struct {
	Content
	stop context.CancelFunc
}

func (s failingContent) piece(at int64) (piece, error) {
	s.stop()
	return s.Content.piece(at)
}

// TestConcurrentSendsOfOneUpload: several clients that send the same file abort each other's
// requests. An aborted request must not affect the next request on its connection.
func TestConcurrentSendsOfOneUpload(t *testing.T) {
	r := newFixture(t)
	want := testImage(16, 40<<20)
	f := testFile(t, want)
	r.create(fmt.Sprint(len(want)), named+",fingerprint "+base64.StdEncoding.EncodeToString([]byte(newRequest(newFile(t, f)).fingerprint())))
	var clients sync.WaitGroup
	for range 3 {
		o := newRequest(newFile(t, f))
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
	r.wantImage(want)
}

// faultyTransport randomly loses requests or responses, and restarts the daemon.
type faultyTransport struct {
	r    *fixture
	dice *rand.Rand
}

var errFault = errors.New("connection reset by a test")

func (f *faultyTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	dice := f.dice.IntN(12)
	switch {
	case dice == 0:
		return nil, errFault
	case dice == 1 && q.Method == http.MethodPatch && q.ContentLength > 0: // the daemon receives half of the body
		half := q.Clone(q.Context())
		half.Header.Del("Upload-Checksum")
		half.Body = io.NopCloser(io.MultiReader(io.LimitReader(q.Body, q.ContentLength/2), brokenBody{}))
		_, err := http.DefaultTransport.RoundTrip(half)
		return nil, err
	case dice == 2 && q.Method == http.MethodPatch && q.ContentLength > 0: // the daemon receives damaged bytes
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
	case err == nil && dice == 3: // the client does not receive the response
		a.Body.Close()
		return nil, errFault
	case err == nil && dice == 4 && len(f.r.sessions.list()) > 0:
		f.r.restart()
	}
	return a, err
}

type brokenBody struct{}

func (brokenBody) Read([]byte) (int, error) { return 0, errFault }

func TestSendThroughNetworkFaults(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := newFixture(t)
			want := testImage(seed, int(13+seed)<<20+512)
			var content Content = newFile(t, testFile(t, want))
			if seed%2 == 1 {
				content = NewPipe(bytes.NewReader(want), -1)
			}
			c := &Client{Base: r.url, Transport: &faultyTransport{r, rand.New(rand.NewPCG(seed, 7))}}
			o := newRequest(content)
			o.Warn = func(err error) { t.Logf("%v", err) }
			err := c.Send(t.Context(), o, &fetch.Progress{})
			for errors.Is(err, errFault) { // before the first response, Send does not retry
				err = c.Send(t.Context(), o, &fetch.Progress{})
			}
			if err != nil && !errors.Is(err, ErrLost) {
				t.Fatal(err)
			}
			r.wantImage(want)
		})
	}
}

// TestSendWithLostLastResponse: the end of a pipe is sent in a separate request. If this request is
// lost, the daemon has all bytes but does not know it, and there is no image yet.
func TestSendWithLostLastResponse(t *testing.T) {
	r := newFixture(t)
	want := testImage(14, 2<<20)
	c := &Client{Base: r.url, Transport: &lossyTransport{}}
	if err := c.Send(t.Context(), newRequest(NewPipe(bytes.NewReader(want), -1)), &fetch.Progress{}); err != nil {
		t.Fatal(err)
	}
	if all := r.sessions.list(); len(all) > 0 {
		t.Fatalf("the client reports that the image is ready, but the daemon waits: %+v", all)
	}
	r.wantImage(want)
}

// lossyTransport loses the first request that contains the length of the image.
type lossyTransport struct{ lost bool }

func (e *lossyTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if q.Header.Get("Upload-Length") != "" && !e.lost {
		e.lost = true
		return nil, errFault
	}
	return http.DefaultTransport.RoundTrip(q)
}

// failingTransport loses requests with bytes, and passes all other requests.
type failingTransport struct{}

func (failingTransport) RoundTrip(q *http.Request) (*http.Response, error) {
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

// TestSendGivesUpWithoutProgress: a response with an unchanged offset is not progress.
func TestSendGivesUpWithoutProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 2*maxStall)
		defer stop()
		c := &Client{Base: "http://daemon", Transport: failingTransport{}}
		warnings := 0
		o := newRequest(NewPipe(bytes.NewReader(make([]byte, 1024)), 1024))
		o.Warn = func(error) { warnings++ }
		began := time.Now()
		if err := c.Send(ctx, o, &fetch.Progress{}); !errors.Is(err, errFault) || time.Since(began) >= 2*maxStall || warnings > 200 {
			t.Errorf("after %v and %d failures: %v", time.Since(began), warnings, err)
		}
	})
}

// TestCancelSendOfBlockedPipe: Send must return although a read from the pipe blocks.
func TestCancelSendOfBlockedPipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		silent, w := io.Pipe()
		time.AfterFunc(time.Hour, func() { w.Close() })
		began := time.Now()
		c := &Client{Base: "http://daemon", Transport: failingTransport{}}
		if err := c.Send(ctx, newRequest(NewPipe(silent, -1)), &fetch.Progress{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 2*time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		w.Close()
	})
}
