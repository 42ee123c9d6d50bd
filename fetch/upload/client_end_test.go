package upload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

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
