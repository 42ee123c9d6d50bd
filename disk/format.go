package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk/filetype"
	"github.com/seed-26586806/backing-image-manager/disk/luks"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// FormatError is the reason why a file is not accepted as an image. It is final until the
// declaration or the file changes.
type FormatError = qcow2.FormatError

func refuse(hint, reason string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf(reason, args...), Hint: hint}
}

// detect returns the format of a file, determined from its first bytes. It returns a *FormatError if
// the file is not an image of the declared format, or if a program that detects the format would
// detect another format. A guest can write the header of any format to its own raw disk, and this
// header can name files of the host.
func detect(head []byte, declared model.Format) (model.Format, error) {
	isQCOW2 := bytes.HasPrefix(head, []byte(qcow2.Magic))
	container, isContainer := filetype.Container(head)
	mistake, isMistake := filetype.Mistake(head)
	switch {
	case isQCOW2 && isContainer:
		return "", refuse("create it anew: qemu-img convert -f qcow2 -O qcow2", "the file begins with a qcow2 header, but it is %s as well", container.Name)
	case isQCOW2 && declared == model.Raw:
		return "", refuse("declare format: qcow2", "declared raw, but the file begins with a qcow2 header")
	case isQCOW2:
		return model.QCOW2, nil
	case isContainer && declared == model.Raw:
		return "", refuse(container.Hint, "declared raw, but the file is %s: programs that detect the format would open it as one", container.Name)
	case declared == model.Raw:
		return model.Raw, nil
	case isContainer:
		return "", refuseType(container, declared)
	case isMistake:
		return "", refuseType(mistake, declared)
	case declared == model.QCOW2:
		return "", refuse("declare format: raw if it is a raw disk", "declared qcow2, but the file does not begin with a qcow2 header")
	}
	return model.Raw, nil
}

func refuseType(t filetype.Type, declared model.Format) error {
	if declared != "" {
		return refuse(t.Hint, "declared %s, but the file is %s", declared, t.Name)
	}
	return refuse(t.Hint, "the file is %s", t.Name)
}

const sector = 512

// Info is the result of Inspect.
type Info struct {
	Format      model.Format
	VirtualSize int64 // bytes that a guest sees
	LUKS        bool  // the file is a raw LUKS2 disk
}

// Inspect returns the format of an image of size bytes. A *FormatError means that the image is not
// accepted; any other error is a read error of r. The declared format and the format that QEMU detects
// must both be the returned format.
//
// Nothing in the file is trusted. Inspect uses bounded memory. It reads the first and last bytes. Of a
// qcow2 image it also reads the tables, but no data: see qcow2.Inspect. It opens no file that the image
// names: images that need another file are not accepted. It reads at arbitrary offsets, so r must not be
// open for direct I/O.
func Inspect(r io.ReaderAt, size int64, declared model.Format) (Info, error) {
	if size == 0 {
		return Info{}, CheckSize(size)
	}
	head := make([]byte, min(filetype.HeadSize, size))
	if err := exactly.ReadAt(r, head, 0); err != nil {
		return Info{}, fmt.Errorf("read image: %w", err)
	}
	// Check the format before the size: "packed with gzip" is more useful than "not a multiple of
	// 512".
	format, err := detect(head, declared)
	if err == nil {
		err = CheckSize(size)
	}
	switch {
	case err != nil:
		return Info{}, err
	case format == model.QCOW2:
		size, err := qcow2.Inspect(r, size)
		if err != nil {
			return Info{}, err
		}
		return Info{Format: model.QCOW2, VirtualSize: size}, nil
	}
	if err := checkTail(r, size, declared); err != nil {
		return Info{}, err
	}
	return Info{Format: model.Raw, VirtualSize: size, LUKS: luks.Version(head) == 2}, nil
}

// inspectHead returns the *FormatError that the first bytes of a file alone cause. nil means that the
// other bytes must be checked, too. It is nil for less than one sector. 64 KiB show nearly all errors,
// 1 MiB all errors that do not depend on the tables of qcow2.
func inspectHead(head []byte, declared model.Format) error {
	if len(head) < sector {
		return nil
	}
	format, err := detect(head[:min(filetype.HeadSize, len(head))], declared)
	if err == nil && format == model.QCOW2 {
		err = qcow2.InspectHead(bytes.NewReader(head), unknownSize)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// unknownSize is a size that passes every check: it is greater than the offsets in a file, and a whole number of sectors.
const unknownSize = 1 << 60

// CheckSize returns a *FormatError for sizes that an image cannot have. Longhorn reads and writes whole
// sectors, and never finishes an image that ends within a sector.
func CheckSize(size int64) error {
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

// checkTail returns an error for a raw disk of size bytes with the trailer of another format.
func checkTail(r io.ReaderAt, size int64, declared model.Format) error {
	tail := make([]byte, min(filetype.TailSize, size))
	if err := exactly.ReadAt(r, tail, size-int64(len(tail))); err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	if t, ok := filetype.ContainerByTrailer(tail); ok {
		return refuseType(t, declared)
	}
	if t, ok := filetype.MistakeByTrailer(tail); ok && declared == "" {
		return refuseType(t, declared)
	}
	return nil
}
