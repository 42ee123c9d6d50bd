package qcow2

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/imagetest"
)

// FuzzInspect checks for any header that Inspect does not panic, reads a bounded number of bytes, and
// returns only a *FormatError if all bytes can be read. InspectHead must not reject an accepted file.
func FuzzInspect(f *testing.F) {
	const maxHead, maxZeros = 4 << 10, 256 << 20 / sector
	for _, c := range hostile {
		b := edited(image(f, "good/"+c.base+".qcow2"), c.edits...)
		head := b[:min(len(b), maxHead)]
		f.Add(head, uint32((len(b)-len(head))/sector))
	}
	f.Fuzz(func(t *testing.T, head []byte, zeros uint32) {
		if len(head) > maxHead || zeros > maxZeros {
			return
		}
		s := &imagetest.Sparse{Head: head, Size: int64(len(head)) + int64(zeros)*sector}
		size, err := Inspect(s, s.Size)
		if s.Bytes > 2*s.Size+130<<20 {
			t.Errorf("Inspect read %d bytes of %d", s.Bytes, s.Size)
		}
		checkFinal(t, err)
		if early := InspectHead(s, s.Size); err == nil && early != nil {
			t.Errorf("InspectHead: %v", early)
		}
		if err == nil && (size <= 0 || size%sector != 0 || size > maxVirtualSize) {
			t.Errorf("Inspect = %d", size)
		}
	})
}

// checkFinal checks that err is nil or a *FormatError.
func checkFinal(t *testing.T, err error) {
	t.Helper()
	if _, ok := errors.AsType[*FormatError](err); err != nil && !ok {
		t.Errorf("%v, although every byte could be read", err)
	}
}

// withSnapshots creates a small image with snapshots.
func withSnapshots(f *testing.F, options string) []byte {
	path := filepath.Join(f.TempDir(), "image")
	if err := os.WriteFile(path, small(f, options), 0o600); err != nil {
		f.Fatal(err)
	}
	run(f, "qemu-img", "snapshot", "-c", "one", path)
	run(f, "qemu-io", "-f", "qcow2", "-c", "write -q -P 4 2k 9k", path)
	run(f, "qemu-img", "snapshot", "-c", "two", path)
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// small creates a small image with clusters of all kinds.
func small(f *testing.F, options string, compress ...string) []byte {
	plain, path := filepath.Join(f.TempDir(), "plain"), filepath.Join(f.TempDir(), "image")
	run(f, "qemu-img", "create", "-q", "-f", "qcow2", plain, "64k")
	run(f, "qemu-io", "-f", "qcow2", "-c", "write -q -P 1 1k 6k", "-c", "write -q -P 2 20k 12k", plain)
	args := append([]string{"convert", "-f", "qcow2", "-O", "qcow2", "-o", options}, compress...)
	run(f, "qemu-img", append(args, plain, path)...)
	run(f, "qemu-io", "-f", "qcow2", "-c", "write -q -P 3 40k 1k", "-c", "write -q -z 20k 1k", path)
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

// FuzzImage checks for any file that no method panics, that a *FormatError is the only error if all
// bytes can be read, that all bytes outside the ranges are zero, and that reads of different sizes
// return the same bytes.
func FuzzImage(f *testing.F) {
	for _, b := range [][]byte{
		small(f, "cluster_size=512"),
		small(f, "cluster_size=512,compat=0.10"),
		small(f, "cluster_size=512", "-c"),
		small(f, "cluster_size=512,compression_type=zstd", "-c"),
		small(f, "cluster_size=16k,extended_l2=on"),
		small(f, "cluster_size=16k,extended_l2=on", "-c"),
		withSnapshots(f, "cluster_size=512"),
		withSnapshots(f, "cluster_size=16k,extended_l2=on"),
	} {
		f.Add(b, uint32(0))
		f.Add(b, uint32(40<<10+100))
	}
	f.Fuzz(func(t *testing.T, b []byte, at uint32) {
		r := &countingReader{r: bytes.NewReader(b)}
		_, err := Inspect(r, int64(len(b)))
		if limit := 2*int64(len(b)) + 130<<20; r.bytes > limit {
			t.Errorf("Inspect read %d bytes; want at most %d", r.bytes, limit)
		}
		m, openErr := Open(bytes.NewReader(b), int64(len(b)))
		if (err == nil) != (openErr == nil) {
			t.Errorf("Inspect: %v, Open: %v", err, openErr)
		}
		if openErr != nil {
			checkFinal(t, openErr)
			return
		}
		const window = 96 << 10
		off := int64(at) % m.Size()
		whole := make([]byte, min(window, m.Size()-off))
		if _, err := m.ReadAt(whole, off); err != nil {
			checkFinal(t, err)
			return
		}
		pieces := make([]byte, len(whole))
		for n := 0; n < len(pieces); n += 700 {
			p := pieces[n:min(len(pieces), n+700)]
			if _, err := m.ReadAt(p, off+int64(n)); err != nil {
				t.Fatalf("read again in pieces: %v", err)
			}
		}
		checkBytes(t, "in pieces", pieces, whole)
		checkRanges(t, m, off, whole)
	})
}

// checkRanges checks that want is zero outside the ranges of m. want is the content of the disk at
// off.
func checkRanges(t *testing.T, m *Image, off int64, want []byte) {
	end := off + int64(len(want))
	for at := off; at < end; {
		from, to, err := m.NextData(at)
		if errors.Is(err, io.EOF) {
			from, to = end, end
		} else if checkFinal(t, err); err != nil {
			return
		} else if from < at || to <= from || to > m.Size() {
			t.Fatalf("NextData(%d) = %d, %d", at, from, to)
		}
		for _, c := range want[at-off : min(from, end)-off] {
			if c != 0 {
				t.Fatalf("data between %d and %d, where NextData returns no range", at, from)
			}
		}
		at = to
	}
}
