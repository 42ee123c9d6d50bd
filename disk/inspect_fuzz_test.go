package disk

import (
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
)

// FuzzInspect holds for any bytes: no panic, bounded reading, errors that are
// final only by what the bytes say, a declaration that is never overruled, and
// no beginning refused of what is accepted as a whole.
func FuzzInspect(f *testing.F) {
	const maxHead = 4 << 10
	files, err := filepath.Glob("testdata/*/*.gz")
	if err != nil {
		f.Fatal(err)
	}
	seed := func(b []byte) {
		head := b[:min(len(b), maxHead)]
		f.Add(head, uint32((len(b)-len(head))/sector), "")
		f.Add(head, uint32((len(b)-len(head))/sector), "qcow2")
	}
	for _, file := range files {
		seed(image(f, strings.TrimSuffix(strings.TrimPrefix(file, "testdata/"), ".gz")))
	}
	f.Fuzz(func(t *testing.T, head []byte, zeros uint32, declared string) {
		format, err := ParseFormat(declared)
		if err != nil || len(head) > maxHead {
			return
		}
		s := &sparse{head: head, size: int64(len(head)) + int64(zeros)*sector}
		info, err := Inspect(s, s.size, format)
		if s.read > 33<<20 {
			t.Errorf("%d bytes were read", s.read)
		}
		if err != nil {
			if e := (*FormatError)(nil); !errors.As(err, &e) {
				t.Errorf("Inspect: %v, though every byte could be read", err)
			}
			return
		}
		checkAccepted(t, info, head, s.size, format)
	})
}

func checkAccepted(t *testing.T, info Info, head []byte, size int64, declared Format) {
	if declared != "" && info.Format != declared {
		t.Errorf("Inspect = %+v, declared %q", info, declared)
	}
	if isQCOW2 := strings.HasPrefix(string(head), qcow2.Magic); isQCOW2 != (info.Format == QCOW2) {
		t.Errorf("Inspect = %+v, qcow2 magic: %t", info, isQCOW2)
	}
	if info.Format == Raw && info.VirtualSize != size {
		t.Errorf("Inspect = %+v of %d bytes", info, size)
	}
	if info.VirtualSize <= 0 || info.VirtualSize%sector != 0 {
		t.Errorf("Inspect = %+v, which no disk has", info)
	}
	for n := len(head); n > 0; n /= 2 {
		if err := InspectHead(head[:n], declared); err != nil {
			t.Errorf("Inspect = %+v, but InspectHead of %d bytes: %v", info, n, err)
		}
	}
}

// sparse is a file of a few bytes and then zeros, which counts what is read.
type sparse struct {
	head []byte
	size int64
	read int64
}

func (s *sparse) ReadAt(p []byte, off int64) (int, error) {
	if off >= s.size {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), s.size-off))
	clear(p[:n])
	if off < int64(len(s.head)) {
		copy(p[:n], s.head[off:])
	}
	s.read += int64(n)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}
