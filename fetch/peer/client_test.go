package peer

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// startFakePeer starts a peer that responds with handler.
func startFakePeer(t *testing.T, handler http.HandlerFunc) Address {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return Address{Node: "node1", URL: s.URL}
}

// writeForever writes text repeatedly until the connection breaks.
func writeForever(w io.Writer, text string) {
	block := []byte(strings.Repeat(text, 1+64<<10/len(text)))
	for {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

func TestStateRejectsHostileResponses(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler http.HandlerFunc
		message string
	}{
		{"too large", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", strconv.Itoa(minStateSize+1))
			writeForever(w, " ")
		}, "too large"},
		{"endless", func(w http.ResponseWriter, _ *http.Request) { writeForever(w, " ") }, "too large"},
		{"an endless array", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, nodeHead+diskHead)
			writeForever(w, "null,")
		}, "name"},
		{"an endless string", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"version":1,"node":"`)
			writeForever(w, "n")
		}, "too large"},
		{"a decompression bomb", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			var member bytes.Buffer
			z := gzip.NewWriter(&member)
			_, _ = z.Write(bytes.Repeat([]byte(" "), 1<<20))
			z.Close()
			writeForever(w, member.String())
		}, "too large"},
		{"invalid gzip", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = io.WriteString(w, "not compressed")
		}, "decompress"},
		{"an unknown encoding", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
		}, "encoding"},
		{"garbage", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }, "invalid character"},
		{"an empty body", func(w http.ResponseWriter, _ *http.Request) {}, "EOF"},
		{"304 without If-None-Match", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) }, "unexpected response 304"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/v1/state", http.StatusFound)
		}, "unexpected response 302"},
		{"many headers", func(w http.ResponseWriter, _ *http.Request) {
			for i := range 10000 {
				w.Header().Set("X-"+strconv.Itoa(i), "x")
			}
		}, "header"},
		{"an error message with control characters", func(w http.ResponseWriter, _ *http.Request) {
			httperror.New(http.StatusInternalServerError, "%s", "\x1b[2Jboo"+strings.Repeat("o", 1<<20)).Write(w)
		}, "500 Internal Server Error"},
		{"a truncated body", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, nodeHead)
			panic(http.ErrAbortHandler)
		}, "closed the connection"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.message == "too large" {
				race.Skip(t)
			}
			at := startFakePeer(t, test.handler)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := newClient(t).State(t.Context(), at, "", 0)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), test.message) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("got %v, want an error with %q", err, test.message)
			}
			if grown := (after.TotalAlloc - before.TotalAlloc) >> 20; grown > 8 {
				t.Errorf("the client allocated %d MiB", grown)
			}
		})
	}
}

func TestRangeRejectsUnexpectedResponses(t *testing.T) {
	const body = "0123456789"
	for _, test := range []struct {
		name    string
		status  int
		header  http.Header
		message string
	}{
		{"the whole image", 200, nil, "unexpected response 200"},
		{"no range", 206, nil, "has 10 bytes"},
		{"another range", 206, http.Header{"Content-Range": {"bytes 5-14/100"}}, "has 10 bytes"},
		{"a longer range", 206, http.Header{"Content-Range": {"bytes 0-99/100"}}, "has 10 bytes"},
		{"compressed", 206, http.Header{"Content-Range": {"bytes 0-9/100"}, "Content-Encoding": {"gzip"}}, "encoding"},
		{"of unknown length", 206, http.Header{"Content-Range": {"bytes 0-9/100"}, "Transfer-Encoding": {"chunked"}}, "has -1 bytes"},
		{"a redirect", 307, http.Header{"Location": {"/elsewhere"}}, "unexpected response 307"},
		{"no content", 204, nil, "unexpected response 204"},
		{"forbidden", 403, nil, "403 Forbidden"},
	} {
		at := startFakePeer(t, func(w http.ResponseWriter, r *http.Request) {
			for key, values := range test.header {
				w.Header()[key] = values
			}
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, body)
		})
		_, err := newClient(t).openRange(t.Context(), Source{Address: at, Disk: "disk1", ID: parrot}.request("data"), 0, 10)
		if err == nil || !strings.Contains(err.Error(), test.message) {
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.message)
		}
	}
}

func TestTruncatedRangeIsUnexpectedEOF(t *testing.T) {
	at := startFakePeer(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Range", "bytes 0-9/100")
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, "01234")
	})
	b, err := newClient(t).openRange(t.Context(), Source{Address: at, Disk: "disk1", ID: parrot}.request("data"), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if got, err := io.ReadAll(b); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestRetryAfterIsLimited(t *testing.T) {
	for after, want := range map[string]time.Duration{
		"": time.Second, "1": time.Second, "0": minRetryAfter, "-1": time.Second, "2.5": 2500 * time.Millisecond,
		"99999999999": maxRetryAfter, "1e400": time.Second, "NaN": time.Second, "+Inf": maxRetryAfter, "tomorrow": time.Second,
	} {
		at := startFakePeer(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", after)
			w.WriteHeader(http.StatusTooManyRequests)
		})
		_, _, err := newClient(t).openWhole(t.Context(), Source{Address: at, Disk: "disk1", ID: parrot}.request("manifest"))
		var busy *busyError
		if !errors.As(err, &busy) || busy.retryAfter != want {
			t.Errorf("%q: got %v, want %v", after, err, want)
		}
	}
}

func TestCopiesRejectsOtherImages(t *testing.T) {
	at := startFakePeer(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(encode(stateWith("node1", 2))) })
	_, err := newClient(t).Copies(t.Context(), at, "image-0000", "")
	if err == nil || !strings.HasSuffix(err.Error(), "the response for image image-0000 has a copy of image-0001") {
		t.Errorf("got %v", err)
	}
	if _, err := newClient(t).Copies(t.Context(), at, "../state", ""); err == nil {
		t.Error("the client sent a request for an invalid name")
	}
}

func TestClientSendsToken(t *testing.T) {
	at := startFakePeer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer open sesame" || r.Proto != "HTTP/1.1" {
			httperror.New(http.StatusUnauthorized, "a token is required").Write(w)
			return
		}
		_, _ = w.Write(encode(model.Node{Node: "node1"}))
	})
	if _, _, err := newClient(t).State(t.Context(), at, "", 0); err == nil || !strings.HasSuffix(err.Error(), "a token is required") {
		t.Errorf("without a token: got %v", err)
	}
	c := NewClient(func() string { return "open sesame" }, nil)
	defer c.Close()
	if _, _, err := c.State(t.Context(), at, "", 0); err != nil {
		t.Errorf("with a token: got %v", err)
	}
}

// TestNodeClientUsesNoProxy checks the field, because net/http reads the environment only once and
// never uses a proxy for loopback.
func TestNodeClientUsesNoProxy(t *testing.T) {
	if newClient(t).http.Transport.(*http.Transport).Proxy != nil {
		t.Error("the client may use a proxy")
	}
}

// silentPeerClient returns a client of a fake peer. The peer reads the request, sends the string
// begin, and then sends nothing.
func silentPeerClient(t *testing.T, begin string) *Client {
	c := NewClient(nil, nil)
	t.Cleanup(c.Close)
	c.http.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		go func() {
			_, _ = theirs.Read(make([]byte, 4<<10))
			_, _ = io.WriteString(theirs, begin)
		}()
		return ours, nil
	}
	return c
}

func TestRequestsTimeOut(t *testing.T) {
	at := Address{Node: "node1", URL: "http://node1:8000"}
	for _, test := range []struct {
		name, begin string
		query       func(context.Context, *Client) error
		want        time.Duration
	}{
		{"state", "", queryState(at, "", 0), 10 * time.Second},
		{"incomplete header", "HTTP/1.1 200 OK\r\nX-A: ", queryState(at, "", 0), 10 * time.Second},
		{"incomplete body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", queryState(at, "", 0), 30 * time.Second},
		{"long poll", "", queryState(at, `"x"`, 30*time.Second), 40 * time.Second},
		{"long poll beyond the limit", "", queryState(at, `"x"`, time.Hour), 70 * time.Second},
		{"copies", "", func(ctx context.Context, c *Client) error { _, err := c.Copies(ctx, at, "parrot", ""); return err }, 30 * time.Second},
		{"data", "", func(ctx context.Context, c *Client) error {
			_, err := c.openRange(ctx, Source{Address: at, Disk: "disk1", ID: parrot}.request("data"), 0, 10)
			return err
		}, 10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				err := test.query(t.Context(), silentPeerClient(t, test.begin))
				if took := time.Since(start); took != test.want || err == nil || !strings.HasSuffix(err.Error(), "no response in time") {
					t.Errorf("got %v after %v, want %v", err, took, test.want)
				}
			})
		})
	}
}

func queryState(at Address, etag string, wait time.Duration) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		_, _, err := c.State(ctx, at, etag, wait)
		return err
	}
}

func TestCancelledRequestReturnsCanceled(t *testing.T) {
	n := startNode(t, "node1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := newClient(t).State(ctx, n.address(), "", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
