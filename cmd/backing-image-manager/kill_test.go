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
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var (
	killSize = flag.Int64("kill.size", 48<<20, "bytes of the image that TestKill downloads")
	killSeed = flag.Uint64("kill.seed", 1, "where TestKill kills")
)

// skipKilled skips with the race detector, which tells at the end of a process what it saw.
func skipKilled(t *testing.T) {
	if race.Enabled {
		t.Skip("killed processes: played without the race detector")
	}
}

// maxAskedTwice is how many bytes one kill may cost of a download.
const maxAskedTwice = 8 << 20

// killer serves an image, and kills the one who downloads it when a given byte has
// been sent. It notes how much of what it sent before is asked for again.
type killer struct {
	image fetchtest.Content

	mu      sync.Mutex
	victim  *os.Process
	killAt  int64 // bytes of the image
	high    int64 // bytes of the image sent to the one before
	twice   int64 // most bytes that were asked for again after a kill
	resumed int
}

func (k *killer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var start int64
	if header := r.Header.Get("Range"); header != "" {
		if _, err := fmt.Sscanf(header, "bytes=%d-", &start); err != nil {
			panic(err)
		}
	}
	k.mu.Lock()
	k.twice = max(k.twice, k.high-start)
	if start > 0 {
		k.resumed++
	}
	k.high = start
	k.mu.Unlock()
	w.Header().Set("ETag", `"one"`)
	http.ServeContent(w, r, "", time.Time{}, &killing{io.NewSectionReader(k.image, 0, k.image.Size()), k})
}

// killing counts what is sent of the image.
type killing struct {
	*io.SectionReader
	k *killer
}

func (r *killing) Read(b []byte) (int, error) {
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

// TestKill kills the program with SIGKILL over and over while it downloads. It
// always ends with the right bytes, and each kill costs a few MiB.
func TestKill(t *testing.T) {
	skipKilled(t)
	t.Parallel()
	period := fetchtest.Random(9, 5<<20)
	clear(period[2<<20 : 4<<20])
	k := &killer{image: fetchtest.Repeated(period, *killSize)}
	origin := httptest.NewUnstartedServer(k)
	origin.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		// What the server's own kernel holds back has not been asked for by anybody.
		if err := c.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
			t.Error(err)
		}
		return ctx
	}
	origin.Start()
	defer origin.Close()
	data, config := t.TempDir(), t.TempDir()
	if _, err := disk.Init(data); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("settings: {allowLoopbackSources: true}\nimages: {big: {source: {download: {url: %q}}, checksum: %q}}\n",
		origin.URL+"/big.raw", sum512(t, k.image))
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
		done = k.victim != nil // nobody killed it
		k.victim = nil
		k.mu.Unlock()
		if done && err != nil {
			t.Fatalf("%v: %s", err, out.String())
		}
		if !done {
			kills++
		}
	}
	t.Logf("%d kills, %d resumptions, at most %.1f MiB asked for again", kills, k.resumed, float64(k.twice)/(1<<20))
	if k.twice > maxAskedTwice || k.resumed == 0 {
		t.Errorf("%d bytes were asked for again after one kill (at most %d may be), %d resumptions", k.twice, maxAskedTwice, k.resumed)
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
	h := disk.SHA512.New()
	if _, err := io.Copy(h, io.NewSectionReader(r, 0, 1<<62)); err != nil {
		t.Fatal(err)
	}
	return disk.SHA512.Digest(h).String()
}
