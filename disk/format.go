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

const sector = 512

// Info is what the bytes of a file say about the disk in it.
type Info struct {
	Format      Format
	VirtualSize int64 // bytes of the disk that a guest sees
	LUKS        bool  // the disk is encrypted as a whole
}

// Inspect says what image the first size bytes of r are, or refuses them with
// a *FormatError; any other error is one of reading r. A declared format is
// never overruled: bytes that contradict it are refused.
//
// Nothing in the file is trusted. Memory is the same for every file, no more
// than 33 MiB are read, and no file that the image names is looked at: images
// that need another file are refused. r is read at any offset and length, so
// it cannot be a file that was opened for direct I/O.
func Inspect(r io.ReaderAt, size int64, declared Format) (Info, error) {
	if size == 0 {
		return Info{}, checkSize(size)
	}
	return source{r, size}.inspect(declared)
}

// inspectHead refuses with a *FormatError what Inspect would refuse for the
// sake of these first bytes alone; nil says nothing about the rest. Less than
// a sector is never refused; 64 KiB find nearly everything, 1 MiB the rest.
func inspectHead(head []byte, declared Format) error {
	if len(head) < sector {
		return nil
	}
	_, err := source{bytes.NewReader(head), unknownSize}.inspect(declared)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// unknownSize stands for a size that refutes nothing: every offset that a
// file could have lies inside, and it is a whole number of sectors.
const unknownSize = math.MaxInt64 &^ (sector - 1)

// source is a file, or what there is of it yet.
type source struct {
	r    io.ReaderAt
	size int64
}

func (s source) inspect(declared Format) (Info, error) {
	head := make([]byte, min(sector, s.size))
	if err := s.read(head, 0); err != nil {
		return Info{}, err
	}
	// Before the size, because "packed" helps more than "not whole sectors".
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

// checkSize refuses sizes that no image has. Longhorn reads and writes images
// in sectors and never gets ready with one that ends within a sector.
func checkSize(size int64) error {
	switch {
	case size == 0:
		return refuse("look at what the address serves, or at what was uploaded", "the file is empty")
	case size%sector != 0:
		// qemu-img itself leaves such files: empty images, and those with
		// snapshots. Zeros at the end do them no harm.
		return refuse("check that it is the image itself and not packed or an error page, and pad it: truncate -s %512 FILE",
			"size %d is not a multiple of %d bytes", size, sector)
	}
	return nil
}

// checkFooter refuses a fixed VHD: a raw disk but for its last sector.
func (s source) checkFooter() error {
	footer := make([]byte, len(vhdMagic))
	if err := s.read(footer, s.size-sector); err != nil {
		return err
	}
	if string(footer) == vhdMagic {
		return refuse(hintConvert, "the file is a VHD image")
	}
	return nil
}

// read fills b from offset. Where the source ends before, the error is
// io.ErrUnexpectedEOF.
func (s source) read(b []byte, offset int64) error {
	n, err := s.r.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read image at %d: %w", offset, err)
}
