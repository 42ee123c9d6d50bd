package disk

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
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
	for _, c := range hostile {
		seed(edited(image(f, "good/"+c.base+".qcow2"), c.edits...))
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
	if isQCOW2 := strings.HasPrefix(string(head), qcow2Magic); isQCOW2 != (info.Format == QCOW2) {
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
