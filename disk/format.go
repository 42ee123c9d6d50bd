package disk

import (
	"bytes"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
)

// Format is how a file holds a disk. The empty Format stands for "not
// declared": the bytes tell.
type Format string

// The formats that an image may have.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// ParseFormat reads a declared format. No text is the empty Format.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case "", Raw, QCOW2:
		return f, nil
	}
	return "", fmt.Errorf("format %q: use \"raw\" or \"qcow2\"", s)
}

// FormatError says why a file cannot be an image. It is final until the
// declaration or the file changes.
type FormatError = qcow2.FormatError

func refuse(hint, reason string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf(reason, args...), Hint: hint}
}

const (
	vhdMagic = "conectix"

	hintRaw     = "declare format: raw if these bytes are the disk itself"
	hintConvert = "convert it with qemu-img convert -O qcow2, or " + hintRaw
	hintUnpack  = "unpack it first (for a download, set unpack), or " + hintRaw
	hintPage    = "look at what the address serves: it may need credentials, or have moved"
)

// foreign is a kind of file that is often taken for an image.
type foreign struct {
	magic  string
	offset int
	name   string
	hint   string
}

// Short magics that boot code could begin with carry the bytes that follow
// them in every real file (gzip's method, bzip2's first block), so that a raw
// disk is not taken for a packed one.
var foreignFiles = []foreign{
	{"KDMV", 0, "a VMDK image", hintConvert},
	{"COWD", 0, "a VMDK image", hintConvert},
	{"# Disk DescriptorFile", 0, "a VMDK descriptor", hintConvert},
	{"\x7f\x10\xda\xbe", 64, "a VDI image", hintConvert},
	{vhdMagic, 0, "a VHD image", hintConvert},
	{"vhdxfile", 0, "a VHDX image", hintConvert},
	{"QED\x00", 0, "a QED image", hintConvert},
	{"WithoutFreeSpace", 0, "a Parallels image", hintConvert},
	{"WithouFreSpacExt", 0, "a Parallels image", hintConvert},
	{"\x1f\x8b\x08", 0, "packed with gzip", hintUnpack},
	{"\xfd7zXZ\x00", 0, "packed with xz", hintUnpack},
	{"\x28\xb5\x2f\xfd", 0, "packed with zstd", hintUnpack},
	{"1AY&SY", 4, "packed with bzip2", hintUnpack},
	{"PK\x03\x04", 0, "packed with zip", hintUnpack},
	{"7z\xbc\xaf\x27\x1c", 0, "packed with 7z", "unpack it with 7z, or " + hintRaw},
	{"ustar", 257, "a tar archive (an OVA is one)", "take the disk out of it, or " + hintRaw},
}

// detect returns the format of a file whose first sector is head, or the
// reason why it may not be taken for an image of the declared format.
func detect(head []byte, declared Format) (Format, error) {
	isQCOW2 := bytes.HasPrefix(head, []byte(qcow2.Magic))
	switch {
	case isQCOW2 && declared == Raw:
		// Whoever probes such a disk later opens it as qcow2, and its header,
		// which a guest can write, then names files of the host.
		return "", refuse("declare format: qcow2", "declared raw, but the file begins with a qcow2 header")
	case isQCOW2:
		return QCOW2, nil
	case declared == Raw:
		return Raw, nil
	}
	f := findForeign(head)
	switch {
	case declared == QCOW2 && f == nil:
		return "", refuse("declare format: raw if it is a raw disk", "declared qcow2, but the file does not begin with a qcow2 header")
	case declared == QCOW2:
		return "", refuse(f.hint, "declared qcow2, but the file is %s", f.name)
	case f != nil:
		return "", refuse(f.hint, "the file is %s", f.name)
	}
	return Raw, nil
}

func findForeign(head []byte) *foreign {
	for i, f := range foreignFiles {
		if f.offset <= len(head) && bytes.HasPrefix(head[f.offset:], []byte(f.magic)) {
			return &foreignFiles[i]
		}
	}
	text := bytes.ToLower(bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))))
	for _, start := range []string{"<!doctype html", "<html", "<?xml"} {
		if bytes.HasPrefix(text, []byte(start)) {
			return &foreign{name: "a web page that the server sent in place of an image", hint: hintPage}
		}
	}
	return nil
}
