package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/internal/testx/imagetest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

func TestParseFormat(t *testing.T) {
	for s, want := range map[string]model.Format{"": "", "raw": model.Raw, "qcow2": model.QCOW2} {
		if got, err := model.ParseFormat(s); got != want || err != nil {
			t.Errorf("ParseFormat(%q) = %q, %v; want %q", s, got, err, want)
		}
	}
	for _, s := range []string{"RAW", "qcow", "vmdk", " raw"} {
		if got, err := model.ParseFormat(s); err == nil {
			t.Errorf("ParseFormat(%q) = %q; want an error", s, got)
		}
	}
}

// withStart returns a raw disk of 64 KiB with s at offset.
func withStart(offset int, s string) []byte {
	b := make([]byte, 64<<10)
	copy(b[offset:], s)
	return b
}

func TestOtherFileTypesAreRefused(t *testing.T) {
	footer := withStart(64<<10-sector, "conectix")
	for _, c := range []struct {
		name  string
		bytes []byte
		what  string
		hint  string
	}{
		{"gzip", withStart(0, "\x1f\x8b\x08"), "packed with gzip", "set unpack"},
		{"xz", withStart(0, "\xfd7zXZ\x00"), "packed with xz", "set unpack"},
		{"zstd", withStart(0, "\x28\xb5\x2f\xfd"), "packed with zstd", "set unpack"},
		{"bzip2", withStart(0, "BZh91AY&SY"), "packed with bzip2", "set unpack"},
		{"zip", withStart(0, "PK\x03\x04"), "packed with zip", "set unpack"},
		{"7z", withStart(0, "7z\xbc\xaf\x27\x1c"), "packed with 7z", "unpack it"},
		{"tar", withStart(257, "ustar\x0000"), "a tar archive", "extract the disk"},
		{"tar of Unix V7", run(t, "", "tar", "--format=v7", "-C", "testdata", "-c", "."), "a tar archive", "extract the disk"},
		{"cpio", withStart(0, "07070100000001000081A4"), "a cpio archive", "extract the disk"},
		{"cpio with checksums", withStart(0, "07070200000001000081A4"), "a cpio archive", "extract the disk"},
		{"old cpio", withStart(0, "0707070000010000011006440000000000000000010000000000000000000000200000000000name"), "a cpio archive", "extract the disk"},
		{"lzip", withStart(0, "LZIP\x01\x0c"), "packed with lzip", "unpack it"},
		{"lzma", withStart(0, "\x5d\x00\x00\x80\x00\xff\xff\xff\xff\xff\xff\xff\xff\x00"), "packed with lzma", "unpack it"},
		{"lzma of xz", run(t, "text", "xz", "--format=lzma", "-9", "-c"), "packed with lzma", "unpack it"},
		{"lzma with a size", withStart(0, "\x5d\x00\x00\x00\x04\x00\x00\x00\x80\x00\x00\x00\x00\x00"), "packed with lzma", "unpack it"},
		{"lz4", withStart(0, "\x04\x22\x4d\x18\x64\x40"), "packed with lz4", "unpack it"},
		{"lz4 of Linux", withStart(0, "\x02\x21\x4c\x18"), "packed with lz4", "unpack it"},
		{"lzop", withStart(0, "\x89LZO\x00\r\n\x1a\n\x10\x40"), "packed with lzop", "unpack it"},
		{"compress", withStart(0, "\x1f\x9d\x90"), "packed with compress", "unpack it"},
		{"RAR 5", withStart(0, "Rar!\x1a\x07\x01\x00"), "a RAR archive", "extract"},
		{"CAB", withStart(0, "MSCF\x00\x00\x00\x00"), "a CAB archive", "extract"},
		{"deb", withStart(0, "!<arch>\ndebian-binary   "), "an ar archive", "extract"},
		{"RPM", withStart(0, "\xed\xab\xee\xdb\x03\x00"), "an RPM package", "extract"},
		{"page", withStart(0, "\xef\xbb\xbf\r\n <!DOCTYPE HTML PUBLIC>"), "a web page", "address"},
		{"page without a type", withStart(0, "<HTML>"), "a web page", "address"},
		{"error document", withStart(0, "<?xml version=\"1.0\"?><Error>"), "a web page", "address"},
		{"fixed VHD", footer, "a VHD image", "qemu-img"},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkRefusedUnlessRaw(t, c.bytes, c.what, c.hint)
		})
	}
}

// run returns the output of a program, in whole sectors.
func run(t *testing.T, in, program string, args ...string) []byte {
	cmd := exec.Command(program, args...)
	if program != "tar" { // a part of each system
		cmd = need.Command(t, program, args...)
	}
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return append(out, make([]byte, sector-len(out)%sector)...)
}

// TestDisksAreNoArchives checks that first sectors of real disks are not taken for other files.
func TestDisksAreNoArchives(t *testing.T) {
	for name, b := range map[string][]byte{
		"zeros":          withStart(0, ""),
		"boot code":      withStart(0, "\xfa\xb8\x00\x10\x8e\xd0\xbc\x00\xb0\xb8\x00\x00\x8e\xd8\x8e\xc0"),
		"GRUB":           withStart(0, "\xeb\x63\x90\x10\x8e\xd0\xbc\x00\xb0"),
		"FAT":            withStart(0, "\xeb\x58\x90mkfs.fat\x00\x02\x08"),
		"NTFS":           withStart(0, "\xeb\x52\x90NTFS    "),
		"XFS":            withStart(0, "XFSB\x00\x00\x10\x00"),
		"Apple":          withStart(0, "ER\x02\x00"),
		"pop, add":       withStart(0, "\x5d\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"),
		"pop, popf":      withStart(0, "\x1f\x9d\xcf"),
		"octal digits":   withStart(0, "disk"+strings.Repeat("\x00", 144)+"000777\x00 "),
		"text":           withStart(0, "07071 is no number of cpio"),
		"LVM":            withStart(512, "LABELONE"),
		"partition":      withStart(446, "\x80\x20\x21\x00\x83"),
		"boot signature": withStart(510, "\x55\xaa"),
	} {
		if info, err := Inspect(bytes.NewReader(b), int64(len(b)), ""); err != nil || info.Format != model.Raw {
			t.Errorf("%s: got %+v, %v", name, info, err)
		}
	}
}

// checkRefusedUnlessRaw checks that b is rejected with the reason what, unless it is declared raw.
func checkRefusedUnlessRaw(t *testing.T, b []byte, what, hint string) {
	t.Helper()
	for _, declared := range []model.Format{"", model.QCOW2} {
		_, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
		e := wantRefused(t, err)
		if declared == "" && (!strings.Contains(e.Reason, what) || !strings.Contains(e.Hint, hint)) {
			t.Errorf("Inspect, declared %q: %q (%q); want %q (%q)", declared, e.Reason, e.Hint, what, hint)
		}
	}
	info, err := Inspect(bytes.NewReader(b), int64(len(b)), model.Raw)
	if want := (Info{Format: model.Raw, VirtualSize: int64(len(b))}); info != want || err != nil {
		t.Errorf("Inspect, declared raw = %+v, %v; want %+v", info, err, want)
	}
}

// descriptorFile is the descriptor of a VMDK image after its first lines. Its extent does not exist.
const descriptorFile = "CID=fffffffe\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\nRW 2048 FLAT \"extent\" 0\n"

// TestContainersAreRefused checks that a file which a program may open as another format than raw is
// not accepted as raw, even if it is declared raw.
func TestContainersAreRefused(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes []byte
		what  string
	}{
		{"VMDK", withStart(0, "KDMV"), "a VMDK image"},
		{"VMDK of ESX", withStart(0, "COWD"), "a VMDK image"},
		{"first line of a descriptor", withStart(0, "# Disk DescriptorFile"), "a VMDK descriptor"},
		{"descriptor", withStart(0, "# x\nversion=1\n"+descriptorFile), "a VMDK descriptor"},
		{"descriptor without a comment", withStart(0, "version=2\n"+descriptorFile), "a VMDK descriptor"},
		{"descriptor of Windows", withStart(0, "#\r\n  \r\nversion=3\r\n"), "a VMDK descriptor"},
		{"descriptor after many comments", withStart(0, strings.Repeat("#\n \n   \r\n", 70)+"version=1\n"), "a VMDK descriptor"},
		{"descriptor for old versions of QEMU", withStart(0, strings.Repeat("#\n", 1000)+"version=1\n"), "a VMDK descriptor"},
		{"VDI", withStart(64, "\x7f\x10\xda\xbe"), "a VDI image"},
		{"VHD", withStart(0, "conectix"), "a VHD image"},
		{"VHDX", withStart(0, "vhdxfile"), "a VHDX image"},
		{"QED", withStart(0, "QED\x00"), "a QED image"},
		{"Parallels", withStart(0, "WithouFreSpacExt"), "a Parallels image"},
		{"old Parallels", withStart(0, "WithoutFreeSpace"), "a Parallels image"},
		{"Bochs", withStart(0, "Bochs Virtual HD Image\x00"), "a Bochs image"},
		{"cloop", withStart(0, "#!/bin/sh\n#V2.0 Format\nmodprobe cloop file=$0 && mount -r -t iso9660 /dev/cloop $1\n"), "a cloop image"},
		{"COW", withStart(0, "OOOM\x00\x00\x00\x02"), "a COW image"},
		{"LUKS1", withStart(0, "LUKS\xba\xbe\x00\x01"), "a LUKS1 disk"},
		{"DMG", withStart(64<<10-sector, "koly"), "a DMG image"},
		{"padded DMG", withStart(64<<10-2*sector+1, "koly"), "a DMG image"},
	} {
		t.Run(c.name, func(t *testing.T) { checkRefusedAlways(t, c.bytes, c.what) })
	}
}

// checkRefusedAlways checks that b is rejected with the reason what, whatever is declared.
func checkRefusedAlways(t *testing.T, b []byte, what string) {
	t.Helper()
	for _, declared := range []model.Format{"", model.Raw, model.QCOW2} {
		_, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
		if e := wantRefused(t, err); declared != model.QCOW2 && !strings.Contains(e.Reason, "the file is "+what) {
			t.Errorf("Inspect, declared %q: %q; want %q", declared, e.Reason, what)
		}
	}
}

// TestTextsAreRawDisks checks that texts that QEMU opens as raw disks are accepted.
func TestTextsAreRawDisks(t *testing.T) {
	for _, s := range []string{
		"version=4\n", "version=1", "version=1 \n", "version=1\r\r\n", " version=1\n", "\nversion=1\n", "\r\nversion=1\n",
		"# x version=1\n", "#\n\nversion=1\n", "#\n\tversion=1\n", "Version=1\n", "version=11\n", "CID=1\nversion=1\n",
		strings.Repeat("#", 2048) + "\nversion=1\n", "#!/bin/sh\n#V2.0 format\n", "Bochs virtual HD Image",
	} {
		b := withStart(0, s)
		for _, declared := range []model.Format{"", model.Raw} {
			if info, err := Inspect(bytes.NewReader(b), int64(len(b)), declared); info.Format != model.Raw || err != nil {
				t.Errorf("Inspect of a disk that begins with %.20q, declared %q = %+v, %v; want raw", s, declared, info, err)
			}
		}
	}
}

// TestTwoHeadersAreRefused checks a file that QEMU may open as qcow2 or as VDI: both have a signature,
// at different offsets.
func TestTwoHeadersAreRefused(t *testing.T) {
	b := image(t, "good/v3.qcow2")
	copy(b[64:], "\x7f\x10\xda\xbe") // in qcow2 the offset of the table of no snapshots
	for _, declared := range []model.Format{"", model.Raw, model.QCOW2} {
		_, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
		if e := wantRefused(t, err); e.Reason != "the file begins with a qcow2 header, but it is a VDI image as well" {
			t.Errorf("Inspect, declared %q: %q", declared, e.Reason)
		}
	}
}

// TestRawDiskLikeShortMagicIsAccepted checks that a boot sector may begin with a short magic of
// another file type.
func TestRawDiskLikeShortMagicIsAccepted(t *testing.T) {
	for _, s := range []string{"\x1f\x8b\x00", "BZh9\x00", "PK", "QFI", "QED\x01", "LUKS"} {
		b := withStart(0, s)
		if info, err := Inspect(bytes.NewReader(b), int64(len(b)), ""); info.Format != model.Raw || err != nil {
			t.Errorf("Inspect of a disk that begins with %q = %+v, %v; want raw", s, info, err)
		}
	}
}

// image returns the bytes of an image in testdata, where it is compressed with gzip.
func image(t testing.TB, name string) []byte {
	t.Helper()
	return imagetest.Gunzip(t, filepath.Join("testdata", name+".gz"))
}

// sizes returns the virtual sizes of the good images, as qemu-img prints them.
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
		t.Errorf("%#v has no reason or no hint", e)
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
			want := Info{Format: model.Format(strings.TrimPrefix(filepath.Ext(name), ".")), VirtualSize: size}
			b := image(t, "good/"+name)
			for _, declared := range []model.Format{"", want.Format} {
				got, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
				if got != want || err != nil {
					t.Errorf("Inspect, declared %q = %+v, %v; want %+v", declared, got, err, want)
				}
				checkHeads(t, b, declared)
			}
		})
	}
}

// checkHeads checks that inspectHead accepts every prefix of a good image.
func checkHeads(t *testing.T, b []byte, declared model.Format) {
	t.Helper()
	for _, n := range []int{0, 3, 72, 511, 512, 513, 4 << 10, 64 << 10, 200 << 10, 1 << 20, len(b)} {
		if err := inspectHead(b[:min(n, len(b))], declared); err != nil {
			t.Errorf("inspectHead of %d bytes, declared %q: %v", n, declared, err)
		}
	}
}

func TestRefusedImages(t *testing.T) {
	for name, reason := range map[string]string{
		"bitmap.qcow2":    "the qcow2 image has bitmaps for backups",
		"overlay.qcow2":   "the qcow2 image has a backing file",
		"datafile.qcow2":  "the qcow2 image has its data in another file",
		"encrypted.qcow2": "the qcow2 image uses qcow2 encryption",
		"dirty.qcow2":     "the qcow2 image was not closed by its last writer",
		"v1.qcow":         "qcow version 1 is neither 2 nor 3",
	} {
		t.Run(name, func(t *testing.T) {
			b := image(t, "refused/"+name)
			checkRefused(t, b, reason)
			if e := wantRefused(t, inspectHead(b[:sector], "")); e.Reason != reason {
				t.Errorf("inspectHead: %q; want %q", e.Reason, reason)
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
			b := image(t, "refused/"+name)
			if name == "fixed.vhd" { // QEMU does not detect it either
				checkRefusedUnlessRaw(t, b, what, "qemu-img convert")
				return
			}
			checkRefusedAlways(t, b, what)
		})
	}
}

// checkRefused checks that b is rejected for the given reason if its format is not declared or
// declared as qcow2. If it is declared raw, it is rejected because it is qcow2.
func checkRefused(t *testing.T, b []byte, reason string) {
	t.Helper()
	for declared, reason := range map[model.Format]string{
		"":          reason,
		model.QCOW2: reason,
		model.Raw:   "declared raw, but the file begins with a qcow2 header",
	} {
		info, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
		if e := wantRefused(t, err); e.Reason != reason || info != (Info{}) {
			t.Errorf("Inspect, declared %q = %+v, %q; want %q", declared, info, e.Reason, reason)
		}
	}
}

func TestOddSizesAreRefused(t *testing.T) {
	for _, c := range []struct {
		size   int64
		reason string
	}{
		{0, "the file is empty"},
		{1000, "size 1000 is not a multiple of 512 bytes"},
		{1, "size 1 is not a multiple of 512 bytes"},
		{513, "size 513 is not a multiple of 512 bytes"},
	} {
		for _, declared := range []model.Format{"", model.Raw} {
			_, err := Inspect(bytes.NewReader(make([]byte, c.size)), c.size, declared)
			if e := wantRefused(t, err); e.Reason != c.reason {
				t.Errorf("Inspect of %d bytes, declared %q: %q; want %q", c.size, declared, e.Reason, c.reason)
			}
		}
	}
	_, err := Inspect(strings.NewReader(""), 0, model.QCOW2)
	if e := wantRefused(t, err); e.Reason != "the file is empty" {
		t.Errorf("Inspect of an empty file, declared qcow2: %q", e.Reason)
	}
	// The type of the file is a better reason than its size.
	page := "<html>moved</html>"
	_, err = Inspect(strings.NewReader(page), int64(len(page)), "")
	if e := wantRefused(t, err); !strings.Contains(e.Reason, "web page") {
		t.Errorf("Inspect of a short web page: %q", e.Reason)
	}
}

func TestRawLUKSDiskIsDetected(t *testing.T) {
	for start, want := range map[string]bool{
		"LUKS\xba\xbe\x00\x02": true,
		"LUKS\xba\xbe\x00\x03": false,
		"SKUL\xba\xbe\x00\x02": false,
	} {
		b := withStart(0, start)
		for _, declared := range []model.Format{"", model.Raw} {
			got, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
			if want := (Info{model.Raw, int64(len(b)), want}); got != want || err != nil {
				t.Errorf("Inspect of %q, declared %q = %+v, %v; want %+v", start, declared, got, err, want)
			}
		}
	}
}

// TestReadErrorIsNotFormatError checks that a read error is not returned as a *FormatError, which
// would be final.
func TestReadErrorIsNotFormatError(t *testing.T) {
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
	// A truncated file is a read error, too.
	_, err := Inspect(bytes.NewReader(good[:64<<10]), int64(len(good)), "")
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("Inspect of a truncated file: %v; want %v", err, io.ErrUnexpectedEOF)
	}
}

type readerAtFunc func(p []byte, off int64) (int, error)

func (f readerAtFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

// FuzzInspect checks for any bytes that Inspect does not panic, reads a bounded number of bytes,
// returns only a *FormatError if all bytes can be read, and never contradicts the declared format.
// inspectHead must accept every prefix of a file that Inspect accepts.
func FuzzInspect(f *testing.F) {
	const maxHead, maxZeros = 4 << 10, 256 << 20 / sector
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
		format, err := model.ParseFormat(declared)
		if err != nil || len(head) > maxHead || zeros > maxZeros {
			return
		}
		s := &imagetest.Sparse{Head: head, Size: int64(len(head)) + int64(zeros)*sector}
		info, err := Inspect(s, s.Size, format)
		if s.Bytes > 2*s.Size+130<<20 {
			t.Errorf("Inspect read %d bytes of %d", s.Bytes, s.Size)
		}
		if err != nil {
			if e := (*FormatError)(nil); !errors.As(err, &e) {
				t.Errorf("Inspect: %v, although every byte could be read", err)
			}
			return
		}
		checkAccepted(t, info, head, s.Size, format)
	})
}

func checkAccepted(t *testing.T, info Info, head []byte, size int64, declared model.Format) {
	if declared != "" && info.Format != declared {
		t.Errorf("Inspect = %+v, declared %q", info, declared)
	}
	if isQCOW2 := strings.HasPrefix(string(head), qcow2.Magic); isQCOW2 != (info.Format == model.QCOW2) {
		t.Errorf("Inspect = %+v, qcow2 magic: %t", info, isQCOW2)
	}
	if info.Format == model.Raw && info.VirtualSize != size {
		t.Errorf("Inspect = %+v of %d bytes", info, size)
	}
	if info.VirtualSize <= 0 || info.VirtualSize%sector != 0 {
		t.Errorf("Inspect = %+v: a disk cannot have this size", info)
	}
	for n := len(head); n > 0; n /= 2 {
		if err := inspectHead(head[:n], declared); err != nil {
			t.Errorf("Inspect = %+v, but inspectHead of %d bytes: %v", info, n, err)
		}
	}
}
