package peer

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
)

var parrot = disk.ID{Name: "parrot", UUID: "0a1b2c3d"}

func TestDataIsWhatWasAskedFor(t *testing.T) {
	n := startNode(t, "node1")
	content := patterned(3<<20 + 512)
	s := n.put(t, parrot, content)
	c := newClient(t)
	for _, want := range []span{{0, 1}, {0, int64(len(content))}, {1 << 20, 2 << 20}, {3 << 20, 3<<20 + 512}} {
		b, err := c.data(t.Context(), s, want.from, want.to)
		if err != nil {
			t.Errorf("%v: %v", want, err)
			continue
		}
		got, err := io.ReadAll(b)
		b.Close()
		if err != nil || !bytes.Equal(got, content[want.from:want.to]) {
			t.Errorf("%v: %d bytes that differ, %v", want, len(got), err)
		}
	}
}

func TestManifestNamesTheChunks(t *testing.T) {
	n := startNode(t, "node1")
	content := patterned(2<<20 + 512)
	s := n.put(t, parrot, content)
	b, length, err := newClient(t).manifest(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	got, err := io.ReadAll(b)
	if err != nil || length != 3*sha256.Size || len(got) != int(length) {
		t.Fatalf("%d of %d bytes, %v", len(got), length, err)
	}
	if sum := sha256.Sum256(content[1<<20 : 2<<20]); !bytes.Equal(got[sha256.Size:2*sha256.Size], sum[:]) {
		t.Errorf("the second sum is %x, want %x", got[sha256.Size:2*sha256.Size], sum)
	}
	h := disk.SHA256.New()
	h.Write(got)
	if digest := disk.SHA256.Sum(h); digest != s.Chunks {
		t.Errorf("the manifest is %s, its copy names %s", digest, s.Chunks)
	}
}

func TestRanges(t *testing.T) {
	n := startNode(t, "node1")
	n.put(t, parrot, patterned(4096))
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

func TestWhatIsNotSent(t *testing.T) {
	n := startNode(t, "node1")
	n.put(t, parrot, patterned(4096))
	damaged, left := disk.ID{Name: "damaged", UUID: "00000001"}, disk.ID{Name: "left", UUID: "00000002"}
	n.put(t, damaged, patterned(4096))
	overwrite(t, n.backing(damaged), []byte("something else"))
	n.put(t, left, patterned(4096))
	n.leave(left)
	for _, test := range []struct {
		path   string
		status int
		says   string
	}{
		{"/v1/images/parrot/0a1b2c3d/WHAT?disk=disk1", 200, ""},
		{"/v1/images/parrot/0a1b2c3d/WHAT", 404, "no disk"},
		{"/v1/images/parrot/0a1b2c3d/WHAT?disk=../disk1", 404, "no disk"},
		{"/v1/images/parrot/0a1b2c3e/WHAT?disk=disk1", 404, "is not on disk disk1"},
		{"/v1/images/damaged/00000001/WHAT?disk=disk1", 409, "is unknown"},
		{"/v1/images/left/00000002/WHAT?disk=disk1", 409, "is leaving disk disk1"},
		{"/v1/images/PARROT/0a1b2c3d/WHAT?disk=disk1", 400, "use a-z"},
		{"/v1/images/parrot/0A1B2C3D/WHAT?disk=disk1", 400, "8 hex digits"},
		{"/v1/images/parrot/0a1b2c3d0/WHAT?disk=disk1", 400, "8 hex digits"},
		{"/v1/images/%2e%2e/0a1b2c3d/WHAT?disk=disk1", 404, ""},
		{"/v1/images/../parrot/0a1b2c3d/WHAT?disk=disk1", 404, ""},
		{"/v1/images/..%2fparrot/0a1b2c3d/WHAT?disk=disk1", 404, ""},
		{"/v1/images/%2fetc%2fpasswd/0a1b2c3d/WHAT?disk=disk1", 404, ""},
		{"/v1/images/parrot%00/0a1b2c3d/WHAT?disk=disk1", 400, "use a-z"},
		{"/v1/images//0a1b2c3d/WHAT?disk=disk1", 404, ""},
		{"/v1/images/parrot/0a1b2c3d/WHAT/?disk=disk1", 404, ""},
		{"/v1/images/parrot//0a1b2c3d/WHAT?disk=disk1", 404, ""},
	} {
		for _, what := range []string{"data", "manifest"} {
			path := strings.Replace(test.path, "WHAT", what, 1)
			resp, text := n.get(t, path)
			if resp.StatusCode != test.status || !strings.Contains(text, test.says) {
				t.Errorf("%s: got %d %.200q, want %d %q", path, resp.StatusCode, text, test.status, test.says)
			}
		}
	}
}

func TestOnlyGET(t *testing.T) {
	n := startNode(t, "node1")
	n.board.Publish(stateWith("node1", 1))
	for _, method := range []string{http.MethodHead, http.MethodPost, http.MethodDelete} {
		r, err := http.NewRequestWithContext(t.Context(), method, n.URL+"/v1/state", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: got %s", method, resp.Status)
		}
	}
}

func TestLeavingCopyIsGone(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, patterned(4096))
	n.leave(parrot)
	_, err := newClient(t).data(t.Context(), s, 0, 512)
	var gone *GoneError
	if !errors.As(err, &gone) || gone.Message != "parrot-0a1b2c3d is leaving disk disk1" {
		t.Errorf("got %v", err)
	}
}

func TestFileThatChangesInTheMiddleBreaksTheConnection(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, patterned(large))
	b, err := newClient(t).data(t.Context(), s, 0, large)
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
		t.Errorf("%d bytes came without an error", got)
	}
}

func TestFileThatIsCutInTheMiddleBreaksTheConnection(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, patterned(large))
	b, err := newClient(t).data(t.Context(), s, 0, large)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := os.Truncate(n.backing(parrot), large/2); err != nil {
		t.Fatal(err)
	}
	if got, err := io.Copy(io.Discard, b); err == nil {
		t.Errorf("%d bytes came without an error", got)
	}
}
