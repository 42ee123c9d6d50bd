package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var (
	killSize = flag.Int64("kill.size", 48<<20, "bytes of the image that TestKilledDownloadResumes downloads")
	killSeed = flag.Uint64("kill.seed", 1, "seed of the moments at which the tests kill processes")
)

// skipKilled skips a test that kills processes under the race detector, which reports races at
// the end of a process.
func skipKilled(t *testing.T) {
	if race.Enabled {
		t.Skip("killed processes report no races")
	}
}

// maxRefetched is how many bytes of a download may be fetched again after one kill.
const maxRefetched = 8 << 20

// killingServer serves an image, and kills the process that downloads it when a given byte was
// sent. It measures how much of what it sent before is requested again.
type killingServer struct {
	image fetchtest.Content

	mu        sync.Mutex
	victim    *os.Process
	killAt    int64 // bytes of the image
	high      int64 // bytes of the image that the last response contained
	refetched int64 // maximum of the bytes that were requested again after a kill
	resumed   int   // requests that continue a download
}

func (k *killingServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var start int64
	if header := r.Header.Get("Range"); header != "" {
		if _, err := fmt.Sscanf(header, "bytes=%d-", &start); err != nil {
			panic(err)
		}
	}
	k.mu.Lock()
	k.refetched = max(k.refetched, k.high-start)
	if start > 0 {
		k.resumed++
	}
	k.high = start
	k.mu.Unlock()
	w.Header().Set("ETag", `"one"`)
	http.ServeContent(w, r, "", time.Time{}, &killingReader{io.NewSectionReader(k.image, 0, k.image.Size()), k})
}

// killingReader counts the bytes of the image that are sent.
type killingReader struct {
	*io.SectionReader
	k *killingServer
}

func (r *killingReader) Read(b []byte) (int, error) {
	at, err := r.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	r.k.mu.Lock()
	r.k.high = max(r.k.high, at)
	if at >= r.k.killAt && r.k.victim != nil {
		err = r.k.victim.Kill()
		r.k.victim = nil
	}
	r.k.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return r.SectionReader.Read(b)
}

// The program is killed by SIGKILL again and again while it downloads. The image must be right in
// the end, and each kill may cost a few MiB.
func TestKilledDownloadResumes(t *testing.T) {
	skipKilled(t)
	t.Parallel()
	period := fetchtest.Random(9, 5<<20)
	clear(period[2<<20 : 4<<20])
	k := &killingServer{image: fetchtest.Repeated(period, *killSize)}
	upstream := httptest.NewUnstartedServer(k)
	upstream.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		// A small buffer: bytes that only the kernel of the server has count as sent.
		if err := c.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
			t.Error(err)
		}
		return ctx
	}
	upstream.Start()
	defer upstream.Close()
	data, config := t.TempDir(), t.TempDir()
	if _, err := disk.Init(data); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("settings: {allowLoopbackSources: true}\nimages: {big: {source: {download: {url: %q}}, checksum: %q}}\n",
		upstream.URL+"/big.raw", sum512(t, k.image))
	if err := os.WriteFile(filepath.Join(config, "images.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(*killSeed, 0))
	kills := 0
	for done := false; !done; {
		cmd := exec.Command("backing-image-manager", "reconcile", "--config-dir", config, "--disk", data)
		var out strings.Builder
		cmd.Stderr = &out
		k.mu.Lock()
		k.killAt = k.high + random.Int64N(*killSize/8) + 1
		k.mu.Unlock()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		k.mu.Lock()
		k.victim = cmd.Process
		k.mu.Unlock()
		err := cmd.Wait()
		k.mu.Lock()
		done = k.victim != nil // it was not killed
		k.victim = nil
		k.mu.Unlock()
		if done && err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		if !done {
			kills++
		}
	}
	t.Logf("%d kills, %d resumptions, at most %.1f MiB fetched again", kills, k.resumed, float64(k.refetched)/(1<<20))
	if k.refetched > maxRefetched || k.resumed == 0 {
		t.Errorf("%d bytes were fetched again after one kill, at most %d are allowed; %d resumptions", k.refetched, maxRefetched, k.resumed)
	}
	found, err := filepath.Glob(filepath.Join(data, "backing-images", "big-*", "backing"))
	if err != nil || len(found) != 1 {
		t.Fatalf("images: %v, error %v", found, err)
	}
	f, err := os.Open(found[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, want := sum512(t, io.NewSectionReader(f, 0, 1<<62)), sum512(t, k.image); got != want {
		t.Errorf("the image has checksum %s, want %s", got, want)
	}
}

func sum512(t *testing.T, r io.ReaderAt) string {
	h := ident.SHA512.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, 1<<62)); err != nil {
		t.Fatal(err)
	}
	return ident.SHA512.Digest(h).String()
}
