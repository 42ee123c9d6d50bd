package peer

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

func TestDownloadSelectsTheGeneration(t *testing.T) {
	n := startNode(t, "node1")
	old, now := ident.ID{Name: "parrot", UUID: "00000001"}, ident.ID{Name: "parrot", UUID: "00000002"}
	content := randomBytes(2*disk.ChunkSize + 512)
	n.put(t, old, content[512:])
	fails := func(query string, status int, message string) {
		t.Helper()
		resp, body := n.get(t, "/v1/images/parrot/download"+query)
		if resp.StatusCode != status || !strings.Contains(body, message) {
			t.Errorf("%s: %s: %.200s", query, resp.Status, body)
		}
	}
	sends := func(query string, want []byte) {
		t.Helper()
		resp, body := n.get(t, "/v1/images/parrot/download"+query)
		if resp.StatusCode != http.StatusOK || !bytes.Equal([]byte(body), want) {
			t.Errorf("%s: %s, %d bytes", query, resp.Status, len(body))
		}
	}
	sends("", content[512:])
	n.put(t, now, content)
	fails("", http.StatusConflict, "several generations")
	n.declared = now.UUID
	sends("", content)
	sends("?uuid="+old.UUID, content[512:])
	fails("?uuid=x", http.StatusBadRequest, "uuid")
	n.withdraw(now)
	fails("", http.StatusConflict, "is leaving disk disk1")
	n.declared = "00000003"
	fails("", http.StatusNotFound, "parrot-00000003 is not on the disks")
}

// TestDownloadSendsNoDamagedChunk checks that the chunks before a damaged chunk are sent, but no byte
// of the damaged chunk.
func TestDownloadSendsNoDamagedChunk(t *testing.T) {
	n := startNode(t, "node1")
	id, content := ident.ID{Name: "parrot", UUID: "00000001"}, randomBytes(3*disk.ChunkSize)
	n.put(t, id, content)
	d, path := n.disk, n.backing(id)
	image, err := openVerifiedImage(d, id, n.disk.Open)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	got := make([]byte, len(content))
	overwrite(t, path, append(content[:disk.ChunkSize:disk.ChunkSize], "macaw"...))
	read := 0
	for {
		m, err := image.Read(got[read:])
		if read += m; err != nil {
			if read != disk.ChunkSize || image.readErr == nil || !strings.Contains(err.Error(), "damaged") {
				t.Errorf("read %d bytes before the damaged chunk, error %v", read, err)
			}
			break
		}
	}
	if _, err := image.Seek(2*disk.ChunkSize+5, 0); err != nil {
		t.Fatal(err)
	}
	if m, err := image.Read(got); m != disk.ChunkSize-5 || err != nil || !bytes.Equal(got[:m], content[2*disk.ChunkSize+5:]) {
		t.Errorf("read %d bytes after the damaged chunk, error %v", m, err)
	}
}

func TestDownloadLimits(t *testing.T) {
	n := startNode(t, "node1")
	id := ident.ID{Name: "parrot", UUID: "00000001"}
	n.put(t, id, randomBytes(disk.ChunkSize))
	for range maxSends {
		if _, ok := n.server.sendLimits.acquire(id, "disk1", func() {}); !ok {
			t.Fatal("no slot is free")
		}
	}
	resp, _ := n.get(t, "/v1/images/parrot/download")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("without a free slot: %s", resp.Status)
	}
	n.server.sendLimits = newSendLimiter()
	for range maxCompressions {
		n.server.compressions <- struct{}{}
	}
	resp, _ = n.get(t, "/v1/images/parrot/download?compress=zstd")
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Content-Disposition") != "" {
		t.Errorf("at the compression limit: %s", resp.Status)
	}
}

// Each range costs the hash of a whole chunk, and a request has room for more than a thousand ranges.
func TestDownloadSendsTheWholeImageForSeveralRanges(t *testing.T) {
	n := startNode(t, "node1")
	content := randomBytes(3*disk.ChunkSize + 512)
	n.put(t, ident.ID{Name: "parrot", UUID: "00000001"}, content)
	whole := strconv.Itoa(len(content))
	for _, tt := range []struct {
		ranges, length string
		status         int
	}{
		{"", whole, 200},
		{"bytes=5-9", "5", 206},
		{"bytes=-5", "5", 206},
		{"bytes=3145728-", "512", 206},
		{"bytes=0-0,1048577-1048577", whole, 200},
		{"bytes=0-0, -1", whole, 200},
		{"bytes=0-0,", whole, 200},
		{"bytes=" + strings.Repeat("0-0,1048577-1048577,", 600) + "2-2", whole, 200},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			r, err := http.NewRequest(method, n.URL+"/v1/images/parrot/download", nil)
			if err != nil {
				t.Fatal(err)
			}
			if tt.ranges != "" {
				r.Header.Set("Range", tt.ranges)
			}
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != tt.status || resp.Header.Get("Content-Length") != tt.length || resp.Header.Get("Content-Type") != "application/octet-stream" || err != nil {
				t.Errorf("%s %.40q: %s, %s bytes of type %s, error %v", method, tt.ranges, resp.Status, resp.Header.Get("Content-Length"), resp.Header.Get("Content-Type"), err)
			}
			if tt.status == 200 && method == http.MethodGet && !bytes.Equal(body, content) {
				t.Errorf("%.40q: the body is not the image", tt.ranges)
			}
		}
	}
}
