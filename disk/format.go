package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/seed-26586806/backing-image-manager/disk/luks"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
)

// Format is the format of an image file. The empty Format means "not declared": it is
// detected from the bytes.
type Format string

// The formats that an image may have.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// ParseFormat parses a declared format; "" is the empty Format.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case "", Raw, QCOW2:
		return f, nil
	}
	return "", fmt.Errorf("format %q: use \"raw\" or \"qcow2\"", s)
}

// FormatError is the reason why a file is not accepted as an image. It is final until the
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
	hintPage    = "check what the address serves: it may need credentials, or the image may have moved"
)

// knownType is a type of file that users often declare as an image by mistake.
type knownType struct {
	magic  string
	offset int
	name   string
	hint   string
}

// knownTypes: the boot code of a raw disk may begin with a short magic by chance. A short magic
// therefore includes the bytes that follow it in every real file, such as gzip's method or bzip2's
// first block.
var knownTypes = []knownType{
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
	{"ustar", 257, "a tar archive (an OVA is one)", "extract the disk from it, or " + hintRaw},
}

// detect returns the format of a file, determined from its first sector. It returns a *FormatError if
// the file is not an image of the declared format.
func detect(head []byte, declared Format) (Format, error) {
	isQCOW2 := bytes.HasPrefix(head, []byte(qcow2.Magic))
	switch {
	case isQCOW2 && declared == Raw:
		// A program that detects the format later would open such a disk as qcow2. A guest can write a
		// qcow2 header to its own raw disk, and the header can name files of the host.
		return "", refuse("declare format: qcow2", "declared raw, but the file begins with a qcow2 header")
	case isQCOW2:
		return QCOW2, nil
	case declared == Raw:
		return Raw, nil
	}
	f := findKnownType(head)
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

func findKnownType(head []byte) *knownType {
	for i, f := range knownTypes {
		if f.offset <= len(head) && bytes.HasPrefix(head[f.offset:], []byte(f.magic)) {
			return &knownTypes[i]
		}
	}
	text := bytes.ToLower(bytes.TrimSpace(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf"))))
	for _, start := range []string{"<!doctype html", "<html", "<?xml"} {
		if bytes.HasPrefix(text, []byte(start)) {
			return &knownType{name: "a web page that the server sent instead of an image", hint: hintPage}
		}
	}
	return nil
}

const sector = 512

// Info is the result of Inspect.
type Info struct {
	Format      Format
	VirtualSize int64 // bytes that a guest sees
	LUKS        bool  // the file is a raw LUKS disk
}

// Inspect returns the format of an image of size bytes. A *FormatError means that the image is not
// accepted; any other error is a read error of r. If the bytes contradict the declared format, the
// image is not accepted.
//
// Nothing in the file is trusted. Inspect uses constant memory and reads at most 33 MiB. It opens no
// file that the image names: images that need another file are not accepted. It reads at arbitrary
// offsets, so r must not be open for direct I/O.
func Inspect(r io.ReaderAt, size int64, declared Format) (Info, error) {
	if size == 0 {
		return Info{}, checkSize(size)
	}
	return inspection{r, size}.inspect(declared)
}

// inspectHead returns the *FormatError that the first bytes of a file alone already cause. nil means
// that the other bytes must be checked. An input of less than one sector returns nil. 64 KiB are
// enough for nearly all errors, 1 MiB for all of them.
func inspectHead(head []byte, declared Format) error {
	if len(head) < sector {
		return nil
	}
	_, err := inspection{bytes.NewReader(head), unknownSize}.inspect(declared)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// unknownSize is a size that passes every check: it is greater than every possible offset, and a
// whole number of sectors.
const unknownSize = math.MaxInt64 &^ (sector - 1)

// inspection is the check of one file, or of its first bytes.
type inspection struct {
	r    io.ReaderAt
	size int64
}

func (s inspection) inspect(declared Format) (Info, error) {
	head := make([]byte, min(sector, s.size))
	if err := s.read(head, 0); err != nil {
		return Info{}, err
	}
	// Check the format before the size: "packed with gzip" is more useful than "not a multiple of
	// 512".
	format, err := detect(head, declared)
	if err != nil {
		return Info{}, err
	}
	if err := checkSize(s.size); err != nil {
		return Info{}, err
	}
	if format == QCOW2 {
		size, err := qcow2.Inspect(s.r, s.size)
		if err != nil {
			return Info{}, err
		}
		return Info{Format: QCOW2, VirtualSize: size}, nil
	}
	if declared == "" {
		if err := s.checkFooter(); err != nil {
			return Info{}, err
		}
	}
	return Info{Format: Raw, VirtualSize: s.size, LUKS: luks.Version(head) != 0}, nil
}

// checkSize returns an error for sizes that an image cannot have. Longhorn reads and writes whole
// sectors, and never finishes an image that ends within a sector.
func checkSize(size int64) error {
	switch {
	case size == 0:
		return refuse("check what the address serves, or what was uploaded", "the file is empty")
	case size%sector != 0:
		// qemu-img itself writes such files: empty images, and images with snapshots. Appended zeros do
		// not change their content.
		return refuse("check that it is the image itself, not packed and not an error page; then pad it: truncate -s %512 FILE",
			"size %d is not a multiple of %d bytes", size, sector)
	}
	return nil
}

// checkFooter returns an error for a fixed VHD, which is a raw disk with a footer in its last sector.
func (s inspection) checkFooter() error {
	footer := make([]byte, len(vhdMagic))
	if err := s.read(footer, s.size-sector); err != nil {
		return err
	}
	if string(footer) == vhdMagic {
		return refuse(hintConvert, "the file is a VHD image")
	}
	return nil
}

// read fills b from offset. If the file ends before b is full, the error is io.ErrUnexpectedEOF.
func (s inspection) read(b []byte, offset int64) error {
	n, err := s.r.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read image at %d: %w", offset, err)
}
