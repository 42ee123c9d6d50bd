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

// InspectHead refuses with a *FormatError what Inspect would refuse for the
// sake of these first bytes alone; nil says nothing about the rest. Less than
// a sector is never refused; 64 KiB find nearly everything, 1 MiB the rest.
func InspectHead(head []byte, declared Format) error {
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
