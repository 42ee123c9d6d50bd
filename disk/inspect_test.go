package disk

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// image returns the bytes of an image in testdata, which is packed there.
func image(t testing.TB, name string) []byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".gz"))
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

// sizes returns the virtual sizes of the good images, as qemu-img said them.
func sizes(t testing.TB) map[string]int64 {
	t.Helper()
	b, err := os.ReadFile("testdata/sizes.txt")
	if err != nil {
		t.Fatal(err)
	}
	sizes := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		var name string
		var size int64
		if _, err := fmt.Sscan(line, &name, &size); err != nil {
			t.Fatalf("sizes.txt: %q: %v", line, err)
		}
		sizes[name] = size
	}
	return sizes
}

func wantRefused(t *testing.T, err error) *FormatError {
	t.Helper()
	var e *FormatError
	if !errors.As(err, &e) {
		t.Fatalf("error %v; want a *FormatError", err)
	}
	if e.Reason == "" || e.Hint == "" || e.Error() != e.Reason {
		t.Errorf("%#v says too little", e)
	}
	return e
}

func TestGoodImages(t *testing.T) {
	files, err := filepath.Glob("testdata/good/*.gz")
	if err != nil {
		t.Fatal(err)
	}
	sizes := sizes(t)
	if len(files) != len(sizes) {
		t.Errorf("%d images, but %d lines in sizes.txt", len(files), len(sizes))
	}
	for name, size := range sizes {
		t.Run(name, func(t *testing.T) {
			want := Info{Format: Format(strings.TrimPrefix(filepath.Ext(name), ".")), VirtualSize: size}
			b := image(t, "good/"+name)
			for _, declared := range []Format{"", want.Format} {
				got, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
				if got != want || err != nil {
					t.Errorf("Inspect, declared %q = %+v, %v; want %+v", declared, got, err, want)
				}
				checkHeads(t, b, declared)
			}
		})
	}
}

// checkHeads holds that no beginning of a good image is refused.
func checkHeads(t *testing.T, b []byte, declared Format) {
	t.Helper()
	for _, n := range []int{0, 3, 72, 511, 512, 513, 4 << 10, 64 << 10, 200 << 10, 1 << 20, len(b)} {
		if err := InspectHead(b[:min(n, len(b))], declared); err != nil {
			t.Errorf("InspectHead of %d bytes, declared %q: %v", n, declared, err)
		}
	}
}

func TestRefusedImages(t *testing.T) {
	for name, reason := range map[string]string{
		"overlay.qcow2":   "the qcow2 image has a backing file",
		"datafile.qcow2":  "the qcow2 image keeps its data in another file",
		"encrypted.qcow2": "the qcow2 image is encrypted inside",
		"dirty.qcow2":     "the qcow2 image was not closed by its last writer",
		"v1.qcow":         "qcow version 1 is neither 2 nor 3",
	} {
		t.Run(name, func(t *testing.T) {
			b := image(t, "refused/"+name)
			checkRefused(t, b, reason)
			if e := wantRefused(t, InspectHead(b[:sector], "")); e.Reason != reason {
				t.Errorf("InspectHead: %q; want %q", e.Reason, reason)
			}
		})
	}
	for name, what := range map[string]string{
		"sparse.vmdk": "a VMDK image",
		"flat.vmdk":   "a VMDK descriptor",
		"disk.vdi":    "a VDI image",
		"dynamic.vhd": "a VHD image",
		"fixed.vhd":   "a VHD image",
		"disk.vhdx":   "a VHDX image",
		"disk.qed":    "a QED image",
		"disk.hdd":    "a Parallels image",
	} {
		t.Run(name, func(t *testing.T) {
			checkForeign(t, image(t, "refused/"+name), what, "qemu-img convert")
		})
	}
}

// checkRefused holds that b is refused for reason, whatever is declared; and
// that declared raw it is refused for being qcow2.
func checkRefused(t *testing.T, b []byte, reason string) {
	t.Helper()
	for declared, reason := range map[Format]string{
		"":    reason,
		QCOW2: reason,
		Raw:   "declared raw, but the file begins with a qcow2 header",
	} {
		info, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
		if e := wantRefused(t, err); e.Reason != reason || info != (Info{}) {
			t.Errorf("Inspect, declared %q = %+v, %q; want %q", declared, info, e.Reason, reason)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, c := range []struct {
		size   int64
		reason string
	}{
		{0, "the file is empty"},
		{1000, "size 1000 is not a multiple of 512 bytes"},
		{1, "size 1 is not a multiple of 512 bytes"},
		{513, "size 513 is not a multiple of 512 bytes"},
	} {
		for _, declared := range []Format{"", Raw} {
			_, err := Inspect(bytes.NewReader(make([]byte, c.size)), c.size, declared)
			if e := wantRefused(t, err); e.Reason != c.reason {
				t.Errorf("Inspect of %d bytes, declared %q: %q; want %q", c.size, declared, e.Reason, c.reason)
			}
		}
	}
	_, err := Inspect(strings.NewReader(""), 0, QCOW2)
	if e := wantRefused(t, err); e.Reason != "the file is empty" {
		t.Errorf("Inspect of an empty file, declared qcow2: %q", e.Reason)
	}
	// What a file is helps more than that its size is odd.
	page := "<html>moved</html>"
	_, err = Inspect(strings.NewReader(page), int64(len(page)), "")
	if e := wantRefused(t, err); !strings.Contains(e.Reason, "web page") {
		t.Errorf("Inspect of a short web page: %q", e.Reason)
	}
}

func TestLUKS(t *testing.T) {
	for start, want := range map[string]bool{
		"LUKS\xba\xbe\x00\x01": true,
		"LUKS\xba\xbe\x00\x02": true,
		"LUKS\xba\xbe\x00\x03": false,
		"SKUL\xba\xbe\x00\x02": false,
	} {
		b := withStart(0, start)
		for _, declared := range []Format{"", Raw} {
			got, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
			if want := (Info{Raw, int64(len(b)), want}); got != want || err != nil {
				t.Errorf("Inspect of %q, declared %q = %+v, %v; want %+v", start, declared, got, err, want)
			}
		}
	}
}

// A disk that cannot be read says nothing about the image, so the error must
// not be the one that is final.
func TestReadError(t *testing.T) {
	good := image(t, "good/v3.qcow2")
	broken := errors.New("bad sector")
	for _, n := range []int{0, sector, 64 << 10, 192 << 10} {
		r := readerAtFunc(func(p []byte, off int64) (int, error) {
			if off+int64(len(p)) > int64(n) {
				return iotest.ErrReader(broken).Read(p)
			}
			return bytes.NewReader(good).ReadAt(p, off)
		})
		_, err := Inspect(r, int64(len(good)), "")
		if e := (*FormatError)(nil); !errors.Is(err, broken) || errors.As(err, &e) {
			t.Errorf("Inspect with bytes from %d on unreadable: %v; want %v", n, err, broken)
		}
	}
	// A file that became shorter than its size is one of these errors too.
	_, err := Inspect(bytes.NewReader(good[:64<<10]), int64(len(good)), "")
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Inspect of a file that shrank: %v; want %v", err, io.ErrUnexpectedEOF)
	}
}

type readerAtFunc func(p []byte, off int64) (int, error)

func (f readerAtFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }
