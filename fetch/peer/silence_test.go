package peer

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// mute is a peer that takes the question and says no more than begin.
func mute(t *testing.T, begin string) *Client {
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

func TestSilenceHasAnEnd(t *testing.T) {
	at := Address{Node: "node1", URL: "http://node1:8000"}
	for _, test := range []struct {
		name, begin string
		ask         func(context.Context, *Client) error
		most        time.Duration
	}{
		{"state", "", stateOf(at, "", 0), 10 * time.Second},
		{"a slow header", "HTTP/1.1 200 OK\r\nX-A: ", stateOf(at, "", 0), 10 * time.Second},
		{"a slow body", "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", stateOf(at, "", 0), 30 * time.Second},
		{"long poll", "", stateOf(at, `"x"`, 30*time.Second), 40 * time.Second},
		{"longer poll", "", stateOf(at, `"x"`, time.Hour), 70 * time.Second},
		{"look", "", func(ctx context.Context, c *Client) error { _, err := c.Look(ctx, at, "parrot"); return err }, 30 * time.Second},
		{"data", "", func(ctx context.Context, c *Client) error {
			_, err := c.data(ctx, Source{Address: at, Disk: "disk1", ID: parrot}, 0, 10)
			return err
		}, 10 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				err := test.ask(t.Context(), mute(t, test.begin))
				if took := time.Since(begun); took != test.most || err == nil || !strings.HasSuffix(err.Error(), "it does not answer in time") {
					t.Errorf("got %v after %v, want %v", err, took, test.most)
				}
			})
		})
	}
}

func stateOf(at Address, etag string, wait time.Duration) func(context.Context, *Client) error {
	return func(ctx context.Context, c *Client) error {
		_, _, err := c.State(ctx, at, etag, wait)
		return err
	}
}
