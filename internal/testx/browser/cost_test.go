package browser

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// period is how long a benchmark measures the daemon.
const period = 30 * time.Second

// BenchmarkOpenPages measures what open pages cost a daemon with 100 images and 30 disks, which has a round each 10 s. The pages are
// long polls, as those of the script. In "change", each round changes the view that all pages show.
func BenchmarkOpenPages(b *testing.B) {
	for _, bb := range []struct {
		name    string
		pages   int
		changes bool
	}{{"none", 0, false}, {"none-change", 0, true}, {"50", 50, false}, {"50-change", 50, true}} {
		b.Run(bb.name, func(b *testing.B) {
			d := newLargeDaemon(b)
			var used time.Duration
			var memory float64
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), period)
				var pages errgroup.Group
				for range bb.pages {
					pages.Go(func() error { return follow(ctx, d.url+"/") })
				}
				before := d.processorTime()
				for change := time.Tick(10 * time.Second); ctx.Err() == nil; {
					select {
					case <-change:
						if bb.changes {
							d.commit("title.yaml", fmt.Sprintf("images: {changing: {title: %v, source: {upload: {}}}}\n", time.Now().Unix()))
						}
					case <-ctx.Done():
					}
				}
				used, memory = used+d.processorTime()-before, max(memory, d.memory())
				if err := pages.Wait(); err != nil {
					b.Fatal(err)
				}
				cancel()
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(used.Seconds()/(period.Seconds()*float64(b.N))*100, "%core")
			b.ReportMetric(memory, "MiB-rss")
		})
	}
}

// BenchmarkFirstLoad measures the bytes and the time until a browser has the page of 100 images and 30 disks, and what it needs.
func BenchmarkFirstLoad(b *testing.B) {
	d := newLargeDaemon(b)
	link := regexp.MustCompile(`(?:href|src)="(/assets/[^"]*)"`)
	sent := 0
	for b.Loop() {
		packed, err := load(b.Context(), d.url+"/")
		if err != nil {
			b.Fatal(err)
		}
		unpacker, err := gzip.NewReader(strings.NewReader(packed))
		if err != nil {
			b.Fatal(err)
		}
		page, err := io.ReadAll(unpacker)
		if err != nil {
			b.Fatal(err)
		}
		sent = len(packed)
		seen := map[string]bool{}
		for _, m := range link.FindAllStringSubmatch(string(page), -1) {
			if seen[m[1]] {
				continue
			}
			seen[m[1]] = true
			asset, err := load(b.Context(), d.url+m[1])
			if err != nil {
				b.Fatal(err)
			}
			sent += len(asset)
		}
	}
	b.ReportMetric(float64(sent)/1000, "kB")
}

// newLargeDaemon starts a daemon with 100 images on 30 disks, which waits for uploads.
func newLargeDaemon(b *testing.B) *daemon {
	b.Helper()
	dir := b.TempDir()
	var config strings.Builder
	config.WriteString("nodes: {node1: {disks: {\n")
	for i := range 30 {
		path := fmt.Sprintf("%s/disk%02d", dir, i)
		if err := os.Mkdir(path, 0o755); err != nil {
			b.Fatal(err)
		}
		if _, err := disk.Init(path); err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(&config, "  disk%02d: {path: %q},\n", i, path)
	}
	config.WriteString("}}}\nimages:\n")
	for i := range 100 {
		fmt.Fprintf(&config, "  image%03d: {minNumberOfCopies: all, source: {upload: {}}}\n", i)
	}
	d := newDaemon(b, config.String(), "--interval", "10s")
	d.await("/", "image001")
	return d
}

// follow requests a view again and again, as the script of the page does.
func follow(ctx context.Context, address string) error {
	for tag := "none"; ; {
		r, err := http.NewRequestWithContext(ctx, "GET", address+"?poll="+tag, nil)
		if err != nil {
			return err
		}
		r.Header.Set("Accept-Encoding", "gzip")
		response, err := http.DefaultClient.Do(r)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case response.StatusCode == http.StatusOK:
			tag = response.Header.Get("X-View")
		case response.StatusCode != http.StatusNoContent:
			return fmt.Errorf("%s: %s", address, response.Status)
		}
	}
}

// load returns the content of an address as it is sent.
func load(ctx context.Context, address string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, "GET", address, nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Accept-Encoding", "gzip")
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", address, response.Status)
	}
	return string(content), err
}

// processorTime returns what the daemon has used, user and system.
func (d *daemon) processorTime() time.Duration {
	d.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		d.Fatal(err)
	}
	fields := strings.Fields(string(content[strings.LastIndex(string(content), ")")+2:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			d.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond // Linux counts 100 ticks a second for programs
}

// memory returns the resident memory of the daemon in MiB.
func (d *daemon) memory() float64 {
	d.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(content)
	if m == nil {
		d.Fatalf("no memory in %s", content)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		d.Fatal(err)
	}
	return float64(n) / 1024
}
