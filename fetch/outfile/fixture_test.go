package outfile

import (
	"bytes"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

const chunkSize = disk.ChunkSize

// image is a ready copy with its manifest.
type image struct {
	content []byte
	m       *disk.Manifest
	sha512  ident.Digest
}

func makeImage(t testing.TB, content []byte) image {
	t.Helper()
	path, id := t.TempDir(), ident.ID{Name: "parrot", UUID: "6846a0b2"}
	if _, err := disk.Init(path); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	p, err := d.OpenPart(t.Context(), id, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(disk.PartSource{ID: "test", Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.Manifest(id)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return image{content, m, c.SHA512}
}

// mixed returns random bytes, zeros, compressible bytes, and a short chunk at the end.
func mixed() []byte {
	b := make([]byte, 3*chunkSize+512)
	noise := rand.NewChaCha8([32]byte{1})
	_, _ = noise.Read(b[:chunkSize])
	copy(b[2*chunkSize:], bytes.Repeat([]byte("parrot"), chunkSize/6))
	_, _ = noise.Read(b[3*chunkSize:])
	return b
}

// append appends the chunks from the next chunk up to end.
func (i image) append(t testing.TB, w *Writer, end int64) {
	t.Helper()
	for w.Next() < end {
		n := w.Next()
		chunk := i.content[n*chunkSize : n*chunkSize+i.m.ChunkLength(n)]
		if zero, err := i.m.IsZero(n); err != nil {
			t.Fatal(err)
		} else if zero {
			chunk = nil
		}
		if err := w.AppendChunk(chunk); err != nil {
			t.Fatal(err)
		}
	}
}

// resume creates the writer of a target and calls Resume.
func (i image) resume(t testing.TB, to Target) (w *Writer, kept int64) {
	t.Helper()
	w, err := Create(to, int64(len(i.content)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	if err := w.Resume(t.Context(), i.m, func(n int64) { kept += n }); err != nil {
		t.Fatal(err)
	}
	if kept != w.Offset() {
		t.Errorf("progress reports %d bytes, but %d were kept", kept, w.Offset())
	}
	return w, kept
}

// decompressWithTool decompresses a file with gzip or zstd.
func decompressWithTool(t testing.TB, path string, p Compression) []byte {
	t.Helper()
	tool := map[Compression]string{None: "cat", Gzip: "gzip", Zstd: "zstd"}[p]
	args := []string{"-dc", path}
	if p == None {
		args = args[1:]
	}
	if p == Zstd {
		need.Programs(t, tool)
	}
	out, err := exec.Command(tool, args...).Output()
	if err != nil {
		t.Fatalf("%s %v: %v", tool, args, err)
	}
	return out
}

var compressions = []Compression{None, Gzip, Zstd}

func list(t *testing.T, to Target) (names []string) {
	t.Helper()
	names, err := filepath.Glob(to.Path + "*")
	if err != nil {
		t.Fatal(err)
	}
	return names
}
