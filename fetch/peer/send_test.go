package peer

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lukechampine.com/blake3"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

var parrot = ident.ID{Name: "parrot", UUID: "0a1b2c3d"}

func TestDataSendsTheRequestedRange(t *testing.T) {
	n := startNode(t, "node1")
	content := randomBytes(3<<20 + 512)
	s := n.put(t, parrot, content)
	c := newClient(t)
	for _, want := range []byteRange{{0, 1}, {0, int64(len(content))}, {1 << 20, 2 << 20}, {3 << 20, 3<<20 + 512}} {
		b, err := c.openRange(t.Context(), s.request("data"), want.from, want.to)
		if err != nil {
			t.Errorf("%v: %v", want, err)
			continue
		}
		got, err := io.ReadAll(b)
		b.Close()
		if err != nil || !bytes.Equal(got, content[want.from:want.to]) {
			t.Errorf("%v: got %d bytes that differ, error %v", want, len(got), err)
		}
	}
}

func TestManifestHasTheHashOfEachChunk(t *testing.T) {
	n := startNode(t, "node1")
	content := randomBytes(2<<20 + 512)
	s := n.put(t, parrot, content)
	b, length, err := newClient(t).openWhole(t.Context(), s.request("manifest"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	got, err := io.ReadAll(b)
	if err != nil || length != model.ChunkFileSize(int64(len(content))) || len(got) != int(length) {
		t.Fatalf("%d of %d bytes, %v", len(got), length, err)
	}
	hashes := bytes.TrimPrefix(got, []byte("BIMCHUNK\x00\x00\x00\x02\x00\x10\x00\x00")) // without it, they are SHA-256
	sum := sha256.Sum256(content[1<<20 : 2<<20])
	if len(hashes) < len(got) {
		sum = blake3.Sum256(content[1<<20 : 2<<20])
	}
	if second := hashes[disk.ChunkHashSize : 2*disk.ChunkHashSize]; !bytes.Equal(second, sum[:]) {
		t.Errorf("the second hash is %x, want %x", second, sum)
	}
	h := ident.SHA256.New()
	h.Write(got)
	if digest := ident.SHA256.Digest(h); digest != s.ManifestDigest {
		t.Errorf("the manifest has the digest %s, want %s", digest, s.ManifestDigest)
	}
}

func TestDataRangeSyntax(t *testing.T) {
	n := startNode(t, "node1")
	n.put(t, parrot, randomBytes(4096))
	for _, test := range []struct {
		header string
		status int
		length int
	}{
		{"", 200, 4096},
		{"bytes=0-4095", 206, 4096},
		{"bytes=0-0", 206, 1},
		{"bytes=4095-4095", 206, 1},
		{"bytes=4000-", 206, 96},
		{"bytes=4096-", 416, 0},
		{"bytes=0-4096", 416, 0},
		{"bytes=7-6", 416, 0},
		{"bytes=9223372036854775807-", 416, 0},
		{"bytes=0-9223372036854775807", 416, 0},
		{"bytes=18446744073709551616-18446744073709551617", 416, 0},
		{"bytes=0-" + strings.Repeat("9", 4000), 416, 0},
		{"bytes=-5", 400, 0},
		{"bytes=-1-5", 400, 0},
		{"bytes=0--5", 400, 0},
		{"bytes=+1-5", 400, 0},
		{"bytes=0x1-5", 400, 0},
		{"bytes=0-1,3-4", 400, 0},
		{"bytes= 0-1", 400, 0},
		{"bytes=", 400, 0},
		{"bytes=-", 400, 0},
		{"lines=0-1", 400, 0},
		{"0-1", 400, 0},
	} {
		resp, text := n.get(t, "/v1/images/parrot/0a1b2c3d/data?disk=disk1", "Range", test.header)
		if resp.StatusCode != test.status || test.length > 0 && len(text) != test.length {
			t.Errorf("%.40q: got %d with %d bytes, want %d with %d", test.header, resp.StatusCode, len(text), test.status, test.length)
		}
	}
}

func TestDataAndManifestRejectUnsendableCopies(t *testing.T) {
	n := startNode(t, "node1")
	n.put(t, parrot, randomBytes(4096))
	damaged, leaving := ident.ID{Name: "damaged", UUID: "00000001"}, ident.ID{Name: "leaving", UUID: "00000002"}
	n.put(t, damaged, randomBytes(4096))
	overwrite(t, n.backing(damaged), []byte("something else"))
	n.put(t, leaving, randomBytes(4096))
	n.withdraw(leaving)
	for _, test := range []struct {
		path    string
		status  int
		message string
	}{
		{"/v1/images/parrot/0a1b2c3d/ROUTE?disk=disk1", 200, ""},
		{"/v1/images/parrot/0a1b2c3d/ROUTE", 404, "no disk"},
		{"/v1/images/parrot/0a1b2c3d/ROUTE?disk=../disk1", 404, "no disk"},
		{"/v1/images/parrot/0a1b2c3e/ROUTE?disk=disk1", 404, "is not on disk disk1"},
		{"/v1/images/damaged/00000001/ROUTE?disk=disk1", 409, "is unknown"},
		{"/v1/images/leaving/00000002/ROUTE?disk=disk1", 409, "is leaving disk disk1"},
		{"/v1/images/PARROT/0a1b2c3d/ROUTE?disk=disk1", 400, "use a-z"},
		{"/v1/images/parrot/0A1B2C3D/ROUTE?disk=disk1", 400, "8 hex digits"},
		{"/v1/images/parrot/0a1b2c3d0/ROUTE?disk=disk1", 400, "8 hex digits"},
		{"/v1/images/%2e%2e/0a1b2c3d/ROUTE?disk=disk1", 404, ""},
		{"/v1/images/../parrot/0a1b2c3d/ROUTE?disk=disk1", 404, ""},
		{"/v1/images/..%2fparrot/0a1b2c3d/ROUTE?disk=disk1", 404, ""},
		{"/v1/images/%2fetc%2fpasswd/0a1b2c3d/ROUTE?disk=disk1", 404, ""},
		{"/v1/images/parrot%00/0a1b2c3d/ROUTE?disk=disk1", 400, "use a-z"},
		{"/v1/images//0a1b2c3d/ROUTE?disk=disk1", 404, ""},
		{"/v1/images/parrot/0a1b2c3d/ROUTE/?disk=disk1", 404, ""},
		{"/v1/images/parrot//0a1b2c3d/ROUTE?disk=disk1", 404, ""},
	} {
		for _, route := range []string{"data", "manifest"} {
			path := strings.Replace(test.path, "ROUTE", route, 1)
			resp, text := n.get(t, path)
			if resp.StatusCode != test.status || !strings.Contains(text, test.message) {
				t.Errorf("%s: got %d %.200q, want %d %q", path, resp.StatusCode, text, test.status, test.message)
			}
		}
	}
}

func TestWithdrawnCopyIsAConflict(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, randomBytes(4096))
	n.withdraw(parrot)
	_, err := newClient(t).openRange(t.Context(), s.request("data"), 0, 512)
	refused, ok := errors.AsType[*httperror.Error](err)
	if !ok || refused.Status != http.StatusConflict || refused.Message != "parrot-0a1b2c3d is leaving disk disk1" {
		t.Errorf("got %v", err)
	}
}

func TestConnectionBreaksWhenTheFileChanges(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, randomBytes(large))
	b, err := newClient(t).openRange(t.Context(), s.request("data"), 0, large)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := io.CopyN(io.Discard, b, 1<<20); err != nil {
		t.Fatal(err)
	}
	overwrite(t, n.backing(parrot), []byte("something else"))
	got, err := io.Copy(io.Discard, b)
	if err == nil {
		t.Errorf("received %d bytes without an error", got)
	}
}

func TestConnectionBreaksWhenTheFileIsTruncated(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, randomBytes(large))
	b, err := newClient(t).openRange(t.Context(), s.request("data"), 0, large)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := os.Truncate(n.backing(parrot), large/2); err != nil {
		t.Fatal(err)
	}
	if got, err := io.Copy(io.Discard, b); err == nil {
		t.Errorf("received %d bytes without an error", got)
	}
}

// large is a size that exceeds the buffers of a connection.
const large = 24 << 20

// occupySlot requests the whole image on a separate connection, and reads only the beginning of the
// response.
func occupySlot(t *testing.T, n *node, id ident.ID) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", n.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "GET /v1/images/%s/%s/data?disk=disk1 HTTP/1.1\r\nHost: %s\r\n\r\n", id.Name, id.UUID, c.RemoteAddr())
	head := make([]byte, len("HTTP/1.1 200 OK"))
	if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.1 200 OK" {
		t.Fatalf("got %q, %v", head, err)
	}
	return c
}

func TestSendLimitPerImage(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, randomBytes(large))
	var last net.Conn
	for range maxSends {
		last = occupySlot(t, n, parrot)
	}
	c := newClient(t)
	_, err := c.openRange(t.Context(), s.request("data"), 0, 512)
	var busy *busyError
	if !errors.As(err, &busy) || busy.retryAfter != time.Second {
		t.Fatalf("the fourth send: got %v", err)
	}
	other := n.put(t, ident.ID{Name: "other", UUID: "00000001"}, randomBytes(4096))
	if b, err := c.openRange(t.Context(), other.request("data"), 0, 512); err != nil {
		t.Errorf("another image: got %v", err)
	} else {
		b.Close()
	}
	last.Close()
	retryUntilSent(t, c, s)
}

// retryUntilSent sends requests until the response is not a 429.
func retryUntilSent(t *testing.T, c *Client, s Source) {
	t.Helper()
	for {
		b, err := c.openRange(t.Context(), s.request("data"), 0, 512)
		if err == nil {
			b.Close()
			return
		}
		var busy *busyError
		if !errors.As(err, &busy) || fetch.Sleep(t.Context(), 20*time.Millisecond) != nil {
			t.Fatalf("got %v", err)
		}
	}
}

func TestStalledReceiverLosesItsSlot(t *testing.T) {
	n := startNode(t, "node1")
	n.server.pieceTimeout, n.server.sendLimits.minHold = 100*time.Millisecond, time.Hour
	s := n.put(t, parrot, randomBytes(large))
	var conns []net.Conn
	for range maxSends {
		conns = append(conns, occupySlot(t, n, parrot))
	}
	retryUntilSent(t, newClient(t), s)
	closed := 0
	for _, c := range conns {
		if got, err := io.Copy(io.Discard, c); got < large || err != nil {
			closed++
		}
	}
	if closed == 0 {
		t.Error("all receivers received all bytes")
	}
}

// TestSendOutlastsTheServerTimeouts: the timeouts of the http.Server are for short responses, so a
// send must extend them.
func TestSendOutlastsTheServerTimeouts(t *testing.T) {
	t.Parallel()
	n := startNode(t, "node1")
	s := n.put(t, parrot, randomBytes(large))
	b, err := newClient(t).openRange(t.Context(), s.request("data"), 0, large)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	_ = fetch.Sleep(t.Context(), n.Config.ReadTimeout+n.Config.WriteTimeout)
	if got, err := io.Copy(io.Discard, b); got != large || err != nil {
		t.Errorf("got %d bytes, %v", got, err)
	}
}

// TestSlowReceiverLosesItsSlotAfterMinHold: a receiver that reads each piece slowly, but within the
// timeout, loses its slot only when another request needs the slot.
func TestSlowReceiverLosesItsSlotAfterMinHold(t *testing.T) {
	n := startNode(t, "node1")
	n.server.pieceTimeout, n.server.sendLimits.minHold = time.Hour, 0
	s := n.put(t, parrot, randomBytes(large))
	var conns []net.Conn
	for range maxSends {
		conns = append(conns, occupySlot(t, n, parrot))
	}
	retryUntilSent(t, newClient(t), s)
	if got, err := io.Copy(io.Discard, conns[0]); got >= large {
		t.Errorf("the oldest send completed with %d bytes, error %v", got, err)
	}
}

// TestSlowReceiverGetsAWholeChunk: a receiver slightly above the stall rate must receive a whole
// chunk. Otherwise it would never receive a complete chunk.
func TestSlowReceiverGetsAWholeChunk(t *testing.T) {
	n := startNode(t, "node1")
	n.put(t, parrot, randomBytes(mib))
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		network.add(t.Context(), "node1")
		server := NewServer(NewStateCache(), &n.testNode)
		network.nodes["node1"].server.Handler = server.Handler()
		b, err := network.client.openRange(t.Context(), Source{Address: Address{Node: "node1", URL: "http://node1:8000"}, Disk: "disk1", ID: parrot}.request("data"), 0, mib)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		const slow = 5 << 10 / 4
		if got, err := io.Copy(io.Discard, fetch.RateLimitReader(t.Context(), b, fetch.NewLimiter(slow))); got != mib || err != nil {
			t.Errorf("received %d bytes, error %v", got, err)
		}
	})
}
