package qcow2

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"
)

// patches is a Source: zeros, but for pieces of bytes in order.
type patches struct {
	size   int64
	pieces []patch
}

type patch struct {
	off int64
	b   []byte
}

func (s *patches) Size() int64 { return s.size }

func (s *patches) ReadAt(p []byte, off int64) (int, error) {
	want := len(p)
	p = p[:max(0, min(int64(want), s.size-off))]
	clear(p)
	for _, c := range s.pieces {
		if from, to := max(off, c.off), min(off+int64(len(p)), c.off+int64(len(c.b))); from < to {
			copy(p[from-off:], c.b[from-c.off:to-c.off])
		}
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (s *patches) NextData(off int64) (start, end int64, err error) {
	for _, c := range s.pieces {
		if end := c.off + int64(len(c.b)); end > off {
			return max(c.off, off), end, nil
		}
	}
	return 0, 0, io.EOF
}

// randomPatches makes a disk whose pieces are of all sorts: random, text, zeros.
func randomPatches(size int64, r *rand.Rand) *patches {
	s := &patches{size: size}
	for off := r.Int64N(size/4 + 1); off < size; {
		b := make([]byte, min(1+r.Int64N(1<<r.IntN(23)), size-off))
		switch r.IntN(4) {
		case 0:
			for i := range b {
				b[i] = byte(r.Uint32())
			}
		case 1:
			copy(b, bytes.Repeat([]byte(fmt.Sprintf("line %d\n", r.IntN(1000))), len(b)/6+1))
		case 2:
			for i := range b {
				b[i] = byte(r.IntN(3))
			}
		}
		s.pieces = append(s.pieces, patch{off, b})
		off += int64(len(b))
		if r.IntN(3) > 0 {
			off += r.Int64N(1 << r.IntN(24))
		}
	}
	return s
}

// encode writes the image of src to a file.
func encode(t testing.TB, src Source, o Options) (path string) {
	t.Helper()
	e, err := Encode(src, o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "encoded"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, e, make([]byte, 1<<20))
	if err != nil || n != e.Size() {
		t.Fatalf("%d bytes and %v; want %d", n, err, e.Size())
	}
	return f.Name()
}

func TestEncode(t *testing.T) {
	for seed := range uint64(16) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(3, seed))
			src := randomPatches((1+r.Int64N(1<<(5+seed%11)))*512, r)
			want := make([]byte, src.size)
			src.ReadAt(want, 0)
			raw := filepath.Join(t.TempDir(), "raw")
			if err := os.WriteFile(raw, want, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, o := range []Options{{}, {Compress: true}} {
				path := encode(t, src, o)
				run(t, "qemu-img", "check", "-q", "-f", "qcow2", path)
				run(t, "qemu-img", "compare", "-q", "-f", "qcow2", "-F", "raw", path, raw)
				checkSource(t, openFile(t, path), want)
				checkSeek(t, src, o, path, r)
			}
		})
	}
}

// checkSeek holds that a file is the same in pieces of any size, and from any offset on.
func checkSeek(t *testing.T, src Source, o Options, path string, r *rand.Rand) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Encode(src, o)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		off := r.Int64N(e.Size() + 1)
		if _, err := e.Seek(off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, r.Int64N(e.Size()-off+1))
		if _, err := io.ReadFull(e, got); err != nil {
			t.Fatal(err)
		}
		checkBytes(t, fmt.Sprintf("from %d on", off), got, want[off:off+int64(len(got))])
	}
	if _, err := e.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if e.Size() < 4<<20 {
		if err := iotest.TestReader(e, want); err != nil {
			t.Fatal(err)
		}
	}
}
