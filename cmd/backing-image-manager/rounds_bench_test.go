package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

var (
	benchProgram   = flag.String("bench.program", "", "the program that the benchmarks of many images measure, such as an earlier one; empty: this one")
	benchImageSize = flag.Int("bench.imagesize", 1<<20, "bytes of an image of these benchmarks")
)

// measuredProgram returns the program to measure.
func measuredProgram(b *testing.B) string {
	if *benchProgram != "" {
		return *benchProgram
	}
	return buildProgram(b)
}

// BenchmarkManyImages measures what a daemon costs while it creates n images of 1 MiB from an upstream on
// this machine. The bare transfer is a process that downloads the same images, five at once as the daemon,
// with the SHA-512 of the image and the SHA-256 of its chunk, and makes each durable with one fsync of the
// file and one of its folder.
//
// All figures are processor time, user and system, for each image. TMPDIR must be on a disk with n MiB.
func BenchmarkManyImages(b *testing.B) {
	program := measuredProgram(b)
	for _, n := range []int{500, 2000, 10000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			upstream := httptest.NewServer(newNumberedImages())
			defer upstream.Close()
			var ours, bare cost
			for b.Loop() {
				bare.add(b, exec.Command(bareTransfer, upstream.URL, strconv.Itoa(n), b.TempDir()))
				ours.addRun(runManyImages(b, program, upstream.URL, n))
			}
			runs := b.N * n
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(perItem(ours, runs), "cpu-ms/image")
			b.ReportMetric(perItem(bare, runs), "bare-ms/image")
			b.ReportMetric(perItem(ours, runs)-perItem(bare, runs), "over-ms/image")
			b.ReportMetric(ours.wall.Seconds()/float64(b.N), "s")
			b.ReportMetric(float64(ours.rss)/(1<<20), "MiB-rss")
		})
	}
}

// BenchmarkAdopt measures what it costs to adopt n folders with images of 4 KiB, as Longhorn leaves them.
func BenchmarkAdopt(b *testing.B) {
	program := measuredProgram(b)
	for _, n := range []int{1000, 4000, 16000} {
		b.Run(fmt.Sprintf("n=%d", n), func(b *testing.B) {
			var ours cost
			for b.Loop() {
				ours.addRun(runAdopt(b, program, n))
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(perItem(ours, b.N*n), "cpu-ms/folder")
			b.ReportMetric(ours.wall.Seconds()*1e3/float64(b.N*n), "ms/folder")
			b.ReportMetric(float64(ours.rss)/(1<<20), "MiB-rss")
		})
	}
}

// BenchmarkLatency measures the time from the change of a config directory until the state that the
// daemon publishes has a new image of 1 MiB as ready.
func BenchmarkLatency(b *testing.B) {
	program := measuredProgram(b)
	upstream := httptest.NewServer(newNumberedImages())
	defer upstream.Close()
	dir := b.TempDir()
	config, data := filepath.Join(dir, "config"), initDisk(b, dir)
	if err := os.Mkdir(config, 0o755); err != nil {
		b.Fatal(err)
	}
	writeImages(b, config, upstream.URL, 1)
	d := startDaemon(b, program, config, data)
	d.await(b, 1)
	images := 1
	for b.Loop() {
		images++
		writeImages(b, config, upstream.URL, images)
		for !isPublished(b, d.url, numberedName(images-1)) {
			time.Sleep(time.Millisecond)
		}
	}
	d.stop(b)
}

func perItem(c cost, n int) float64 { return c.cpu.Seconds() * 1e3 / float64(n) }

func (c *cost) add(b *testing.B, cmd *exec.Cmd) { c.addRun(measure(b, cmd)) }

func (c *cost) addRun(one cost) {
	c.wall += one.wall
	c.cpu += one.cpu
	c.rss = max(c.rss, one.rss)
}

// numberedImages serves images of random bytes that differ in their first bytes, as /0.raw, /1.raw and
// so on.
type numberedImages struct{ common []byte }

func newNumberedImages() numberedImages {
	n := numberedImages{make([]byte, *benchImageSize)}
	_, _ = rand.NewChaCha8([32]byte{5}).Read(n.common)
	return n
}

func (n numberedImages) image(number int) []byte {
	image := bytes.Clone(n.common)
	binary.BigEndian.PutUint64(image[8:], uint64(number)) // behind the bytes that identify a format
	return image
}

func (n numberedImages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	number, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), ".raw"))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("ETag", fmt.Sprintf(`"%d"`, number))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(n.image(number)))
}

func numberedName(number int) string { return fmt.Sprintf("image-%05d", number) }

// writeImages declares the first n images. The change of the file is atomic.
func writeImages(b *testing.B, config, url string, n int) {
	text := bytes.NewBufferString("settings: {allowLoopbackSources: true}\nimages:\n")
	images := newNumberedImages()
	for i := range n {
		fmt.Fprintf(text, "  %s: {source: {download: {url: %q}}, checksum: \"%x\"}\n", numberedName(i), fmt.Sprintf("%s/%d.raw", url, i), sha512.Sum512(images.image(i)))
	}
	replaceFile(b, filepath.Join(config, "images.yaml"), text.Bytes())
}

func replaceFile(b *testing.B, name string, data []byte) {
	if err := os.WriteFile(name+".new", data, 0o644); err != nil {
		b.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		b.Fatal(err)
	}
}

// initDisk makes an initialised disk in dir.
func initDisk(b *testing.B, dir string) string {
	data := filepath.Join(dir, "disk")
	if err := os.Mkdir(data, 0o755); err != nil {
		b.Fatal(err)
	}
	if _, err := disk.Init(data); err != nil {
		b.Fatal(err)
	}
	return data
}

func runManyImages(b *testing.B, program, url string, n int) cost {
	dir := b.TempDir()
	config, data := filepath.Join(dir, "config"), initDisk(b, dir)
	if err := os.Mkdir(config, 0o755); err != nil {
		b.Fatal(err)
	}
	writeImages(b, config, url, n)
	d := startDaemon(b, program, config, data)
	d.await(b, n)
	c := d.stop(b)
	if err := os.RemoveAll(dir); err != nil { // b.TempDir would keep it until the end
		b.Fatal(err)
	}
	return c
}

func runAdopt(b *testing.B, program string, n int) cost {
	dir := b.TempDir()
	config, data := filepath.Join(dir, "config"), initDisk(b, dir)
	if err := os.Mkdir(config, 0o755); err != nil {
		b.Fatal(err)
	}
	text := bytes.NewBufferString("images:\n")
	images := newNumberedImages()
	for i := range n {
		id := ident.ID{Name: numberedName(i), UUID: fmt.Sprintf("%08x", i)}
		folder := filepath.Join(data, "backing-images", id.String())
		if err := os.MkdirAll(folder, 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "backing"), images.image(i)[:4096], 0o644); err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(text, "  %s: {source: {upload: {}}, uuid: %q}\n", id.Name, id.UUID)
	}
	replaceFile(b, filepath.Join(config, "images.yaml"), text.Bytes())
	c := measure(b, exec.Command(program, "reconcile", "--config-dir", config, "--disk", data))
	records, err := filepath.Glob(filepath.Join(data, "backing-images", "*", "backing.record"))
	if err != nil || len(records) != n {
		b.Fatalf("%d of %d folders were adopted, error %v", len(records), n, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		b.Fatal(err)
	}
	return c
}

// benchDaemon is a running daemon whose log is counted.
type benchDaemon struct {
	cmd     *exec.Cmd
	url     string
	started time.Time
	done    atomic.Int64 // actions
	all     chan int64   // receives done when it changes
	read    chan struct{}
}

func startDaemon(b *testing.B, program, config, data string) *benchDaemon {
	d := &benchDaemon{started: time.Now(), all: make(chan int64, 1), read: make(chan struct{})}
	d.cmd = exec.Command(program, "daemon", "--config-dir", config, "--disk", data, "--listen", "127.0.0.1:0", "--log-format", "json")
	log, err := d.cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = d.cmd.Process.Kill() }) // does nothing after stop
	listening := make(chan string, 1)
	go d.readLog(log, listening)
	select {
	case at := <-listening:
		d.url = "http://" + at
	case <-d.read:
		b.Fatal("the daemon ended before it listened")
	}
	return d
}

// readLog counts the actions that are done. It ends with the daemon.
func (d *benchDaemon) readLog(log io.Reader, listening chan<- string) {
	defer close(d.read)
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct{ Level, Msg, Op, Address string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			fmt.Fprintln(os.Stderr, lines.Text())
			continue
		}
		switch {
		case line.Msg == "listening":
			listening <- line.Address
		case line.Msg == "done" && line.Op == "download":
			n := d.done.Add(1)
			select {
			case <-d.all:
			default:
			}
			d.all <- n
		case line.Level != "INFO":
			fmt.Fprintln(os.Stderr, lines.Text())
		}
	}
}

// await waits until n downloads are done.
func (d *benchDaemon) await(b *testing.B, n int) {
	for {
		select {
		case done := <-d.all:
			if done >= int64(n) {
				return
			}
		case <-d.read:
			b.Fatalf("the daemon ended after %d of %d downloads", d.done.Load(), n)
		}
	}
}

// stop stops the daemon, and returns what it cost.
func (d *benchDaemon) stop(b *testing.B) cost {
	wall := time.Since(d.started)
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.Fatal(err)
	}
	<-d.read
	if err := d.cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	c := costOf(d.cmd.ProcessState)
	c.wall = wall
	return c
}

// isPublished reports whether the state of a daemon has a ready copy of an image.
func isPublished(b *testing.B, url, image string) bool {
	response, err := http.Get(url + "/v1/state")
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	var state struct {
		Disks []struct {
			Copies []struct{ Name, State string }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&state); err != nil {
		b.Fatal(err)
	}
	for _, on := range state.Disks {
		for _, c := range on.Copies {
			if c.Name == image && c.State == "ready" {
				return true
			}
		}
	}
	return false
}

// bareTransfer is the name under which TestMain runs transferBare.
const bareTransfer = "bare-transfer"

// transferBare is the program of the bare transfer of BenchmarkManyImages. Its arguments are the URL, the
// number of images and the folder.
func transferBare() {
	url, dir := os.Args[1], os.Args[3]
	n, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	var all errgroup.Group
	all.SetLimit(5) // the default of concurrentReplenishPerNodeLimit
	for i := range n {
		all.Go(func() error {
			return transferOne(fmt.Sprintf("%s/%d.raw", url, i), filepath.Join(dir, numberedName(i)))
		})
	}
	if err := errors.Join(all.Wait(), os.RemoveAll(dir)); err != nil {
		panic(err)
	}
}

// transferOne downloads one image to a new folder.
func transferOne(url, folder string) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(folder, "backing.part"))
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(io.MultiWriter(f, sha512.New(), sha256.New()), response.Body); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(folder, "backing")); err != nil {
		return err
	}
	in, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(in.Sync(), in.Close())
}
