package delta

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

var (
	oldID = ident.ID{Name: "parrot", UUID: "00000001"}
	newID = ident.ID{Name: "parrot", UUID: "00000002"}
)

// site is a web server and a disk.
type site struct {
	t      testing.TB
	disk   *disk.Disk
	url    string
	files  map[string][]byte
	sent   atomic.Int64 // bytes of bodies
	gets   atomic.Int64
	handle func(http.ResponseWriter, *http.Request) bool // serves a request, if it returns true

	client   *fetch.Client
	progress fetch.Progress
	warnings []string
	survey   assemble.Survey
}

func newSite(t testing.TB) *site {
	t.Helper()
	s := &site{t: t, files: map[string][]byte{}, client: &fetch.Client{AllowLoopback: true}}
	s.disk = openDisk(t, t.TempDir())
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func openDisk(t testing.TB, dir string) *disk.Disk {
	t.Helper()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// ServeHTTP sends a file, and counts the bytes.
func (s *site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.gets.Add(1)
	counted := &countingWriter{w, &s.sent}
	if s.handle != nil && s.handle(counted, r) {
		return
	}
	file, ok := s.files[strings.TrimPrefix(r.URL.Path, "/")]
	if !ok {
		http.NotFound(counted, r)
		return
	}
	http.ServeContent(counted, r, "", time.Unix(1e9, 0), bytes.NewReader(file))
}

type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n.Add(int64(n))
	return n, err
}

// put makes a ready copy of a file on the disk.
func (s *site) put(id ident.ID, file []byte) {
	s.t.Helper()
	p, err := s.disk.OpenPart(context.Background(), id, disk.PartOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(disk.PartSource{ID: "test", Size: int64(len(file))}); err != nil {
		s.t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(file)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := p.Commit(ident.Digest{}); err != nil {
		s.t.Fatal(err)
	}
}

// seed opens a ready copy as a seed.
func (s *site) seed(id ident.ID, damaged *atomic.Int64) assemble.Seed {
	s.t.Helper()
	r, err := s.disk.Open(id)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { r.Close() })
	m, err := s.disk.Manifest(id)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { m.Close() })
	index, err := s.disk.Index(id)
	if err != nil {
		index = nil
	}
	return assemble.Seed{ID: id, Reader: r, Manifest: m, Index: index, Cut: true, Damaged: func() { damaged.Add(1) }}
}

// request returns the request for a file of the server.
func (s *site) request(name string, file []byte) fetch.Request {
	sum := sha512.Sum512(file)
	digest, err := ident.ParseDigest(hex.EncodeToString(sum[:]))
	if err != nil {
		s.t.Fatal(err)
	}
	return fetch.Request{URL: s.url + "/" + name, Index: s.url + "/" + name + ".caibx", Digest: digest}
}

// download downloads and commits an image as a job does.
func (s *site) download(r fetch.Request, seeds ...assemble.Seed) error {
	s.t.Helper()
	return s.downloadContext(context.Background(), r, seeds...)
}

func (s *site) downloadContext(ctx context.Context, r fetch.Request, seeds ...assemble.Seed) error {
	s.t.Helper()
	part := s.part(r)
	defer part.Close()
	if err := s.fill(ctx, part, r, seeds...); err != nil {
		return err
	}
	_, err := part.Commit(r.Digest)
	return err
}

// part opens the partial file of the new version.
func (s *site) part(r fetch.Request) *disk.Part {
	s.t.Helper()
	part, err := s.disk.OpenPart(context.Background(), newID, disk.PartOptions{Accept: r.CanResume})
	if err != nil {
		s.t.Fatal(err)
	}
	return part
}

// fill downloads an image, but does not commit it.
func (s *site) fill(ctx context.Context, part *disk.Part, r fetch.Request, seeds ...assemble.Seed) error {
	d := Download{
		Client: s.client, Request: r, Seeds: seeds, Progress: &s.progress,
		Survey: func(v assemble.Survey) { s.survey = v },
		Warn:   func(err error) { s.warnings = append(s.warnings, err.Error()) },
	}
	return d.Into(ctx, part)
}

// wantImage fails the test unless the image on the disk is want.
func (s *site) wantImage(want []byte) {
	s.t.Helper()
	got, err := os.ReadFile(filepath.Join(s.disk.Path(), "backing-images", newID.String(), "backing"))
	if err != nil {
		s.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		s.t.Fatalf("the image on the disk (%d bytes) differs from the source (%d bytes)", len(got), len(want))
	}
}

// memory is a caibx.File.
type memory struct{ *bytes.Reader }

func (memory) IsHole(from, to int64) bool { return false }

// indexOf returns the index of a file.
func indexOf(t testing.TB, file []byte, h caibx.Header) []byte {
	t.Helper()
	f, err := caibx.TempFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	table, err := caibx.Cut(context.Background(), memory{bytes.NewReader(file)}, int64(len(file)), h, f, new(atomic.Int64))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	return bytes.Clone(table.Index())
}

// putStore adds the chunks of a file to the server.
func (s *site) putStore(name string, file []byte, h caibx.Header, pack func(chunk []byte) []byte) {
	s.t.Helper()
	index := indexOf(s.t, file, h)
	r, err := caibx.NewReader(bytes.NewReader(index), int64(len(index)), caibx.Limits{Image: int64(len(file)), Chunk: 1})
	if err != nil {
		s.t.Fatal(err)
	}
	for {
		i, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			s.t.Fatal(err)
		}
		chunk := file[i.Offset:i.End()]
		if pack == nil {
			s.files[name+"/"+i.ID.PlainPath()] = chunk
			continue
		}
		s.files[name+"/"+i.ID.PackedPath()] = pack(chunk)
	}
}

var small = caibx.Header{Sizes: caibx.Sizes{Min: 1 << 10, Avg: 4 << 10, Max: 16 << 10}}

func describe(s *site) string {
	return fmt.Sprintf("sent %d bytes in %d responses, survey %+v, warnings %q", s.sent.Load(), s.gets.Load(), s.survey, s.warnings)
}

// brokenWriter aborts the response after left bytes.
type brokenWriter struct {
	http.ResponseWriter
	left int
}

func (b *brokenWriter) Write(p []byte) (int, error) {
	if len(p) > b.left {
		_, _ = b.ResponseWriter.Write(p[:b.left])
		panic(http.ErrAbortHandler)
	}
	b.left -= len(p)
	return b.ResponseWriter.Write(p)
}

// stoppingWriter calls stop when the site has sent limit bytes.
type stoppingWriter struct {
	http.ResponseWriter
	s     *site
	limit int64
	stop  func()
}

func (w *stoppingWriter) Write(p []byte) (int, error) {
	if w.s.sent.Load() > w.limit {
		w.stop()
	}
	return w.ResponseWriter.Write(p)
}

func gzipped(t testing.TB, file []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(file); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// indexFile returns an open file with the bytes of an index.
func indexFile(t testing.TB, index []byte) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err == nil {
		_, err = f.Write(index)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}
