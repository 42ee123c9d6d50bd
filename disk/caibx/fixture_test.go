package caibx

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// fixture returns a file of testdata. A name with the ending .zst is unpacked.
func fixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err == nil && filepath.Ext(name) == ".zst" {
		var z *zstd.Decoder
		if z, err = zstd.NewReader(nil); err == nil {
			defer z.Close()
			data, err = z.DecodeAll(data, nil)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// noise returns n random bytes, always the same ones for a seed.
func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// limits accept every valid index of the tests.
var limits = Limits{Image: 1 << 30, Chunk: 1}

// readAll returns all items of an index.
func readAll(index []byte, l Limits) (h Header, items []Item, err error) {
	r, err := NewReader(bytes.NewReader(index), int64(len(index)), l)
	if err != nil {
		return h, nil, err
	}
	for {
		i, err := r.Next()
		if errors.Is(err, io.EOF) {
			return r.Header(), items, nil
		}
		if err != nil {
			return h, items, err
		}
		items = append(items, i)
	}
}

// makeIndex returns the index of a file, which the chunker reads in pieces of the given size.
func makeIndex(t testing.TB, file []byte, h Header, piece int) []byte {
	t.Helper()
	var out bytes.Buffer
	buffered := bufio.NewWriter(&out)
	w, err := NewWriter(buffered, h)
	if err != nil {
		t.Fatal(err)
	}
	at := 0
	for _, end := range ends(t, file, h.Sizes, piece) {
		if err := w.Append(int64(end-at), h.Digest.ID(file[at:end])); err != nil {
			t.Fatal(err)
		}
		at = end
	}
	if err := errors.Join(w.Close(), buffered.Flush()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// ends returns the ends of the chunks of a file.
func ends(t testing.TB, file []byte, s Sizes, piece int) (all []int) {
	t.Helper()
	c, err := NewChunker(s)
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for at := 0; at < len(file); {
		n, end := c.Next(file[:min(at+piece, len(file))], at)
		at += n
		if end {
			all, last = append(all, at), at
		}
	}
	if last < len(file) {
		all = append(all, len(file))
	}
	return all
}
