package disk

import (
	"bytes"
	"strings"
	"testing"
)

func TestParseFormat(t *testing.T) {
	for s, want := range map[string]Format{"": "", "raw": Raw, "qcow2": QCOW2} {
		if got, err := ParseFormat(s); got != want || err != nil {
			t.Errorf("ParseFormat(%q) = %q, %v; want %q", s, got, err, want)
		}
	}
	for _, s := range []string{"RAW", "qcow", "vmdk", " raw"} {
		if got, err := ParseFormat(s); err == nil {
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

func TestForeignFiles(t *testing.T) {
	footer := withStart(64<<10-sector, vhdMagic)
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
		{"7z", withStart(0, "7z\xbc\xaf\x27\x1c"), "packed with 7z", "7z"},
		{"tar", withStart(257, "ustar\x0000"), "a tar archive", "take the disk out"},
		{"page", withStart(0, "\xef\xbb\xbf\r\n <!DOCTYPE HTML PUBLIC>"), "a web page", "address"},
		{"page without a type", withStart(0, "<HTML>"), "a web page", "address"},
		{"error document", withStart(0, "<?xml version=\"1.0\"?><Error>"), "a web page", "address"},
		{"VMDK of ESX", withStart(0, "COWD"), "a VMDK image", "qemu-img"},
		{"old Parallels", withStart(0, "WithoutFreeSpace"), "a Parallels image", "qemu-img"},
		{"fixed VHD", footer, "a VHD image", "qemu-img"},
	} {
		t.Run(c.name, func(t *testing.T) {
			checkForeign(t, c.bytes, c.what, c.hint)
		})
	}
}

// checkForeign holds that b is refused as what, unless it is declared raw.
func checkForeign(t *testing.T, b []byte, what, hint string) {
	t.Helper()
	for _, declared := range []Format{"", QCOW2} {
		_, err := Inspect(bytes.NewReader(b), int64(len(b)), declared)
		e := wantRefused(t, err)
		if declared == "" && (!strings.Contains(e.Reason, what) || !strings.Contains(e.Hint, hint)) {
			t.Errorf("Inspect, declared %q: %q (%q); want %q (%q)", declared, e.Reason, e.Hint, what, hint)
		}
	}
	info, err := Inspect(bytes.NewReader(b), int64(len(b)), Raw)
	if want := (Info{Format: Raw, VirtualSize: int64(len(b))}); info != want || err != nil {
		t.Errorf("Inspect, declared raw = %+v, %v; want %+v", info, err, want)
	}
}

// Bytes that a boot sector may well begin with are no sign of packing.
func TestRawThatLooksPacked(t *testing.T) {
	for _, s := range []string{"\x1f\x8b\x00", "BZh9\x00", "PK", "QFI", "QED\x01", "LUKS"} {
		b := withStart(0, s)
		if info, err := Inspect(bytes.NewReader(b), int64(len(b)), ""); info.Format != Raw || err != nil {
			t.Errorf("Inspect of a disk that begins with %q = %+v, %v; want raw", s, info, err)
		}
	}
}
