// Package imagetest provides image files for tests of packages that read image formats.
package imagetest

import (
	"compress/gzip"
	"io"
	"os"
	"testing"
)

// Gunzip returns the content of a gzip file.
func Gunzip(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Sparse is a file of Size bytes that consists of Head and zeros. It counts the bytes that are read.
// It is not safe for concurrent use.
type Sparse struct {
	Head  []byte
	Size  int64
	Bytes int64 // number of bytes that were read
}

// ReadAt implements io.ReaderAt.
func (s *Sparse) ReadAt(p []byte, off int64) (int, error) {
	if off >= s.Size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), s.Size-off))
	clear(p[:n])
	if off < int64(len(s.Head)) {
		copy(p[:n], s.Head[off:])
	}
	s.Bytes += int64(n)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
