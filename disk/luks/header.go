package luks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	firstMagic  = "LUKS\xba\xbe"
	secondMagic = "SKUL\xba\xbe"

	binarySize  = 4096
	minCopySize = 16 << 10
	maxCopySize = 4 << 20
)

// Version returns the version of LUKS that a disk with these first bytes is encrypted
// with as a whole, and 0 if it is not. There is no later version than 2.
func Version(head []byte) int {
	rest, ok := bytes.CutPrefix(head, []byte(firstMagic))
	if !ok || len(rest) < 2 {
		return 0
	}
	version := binary.BigEndian.Uint16(rest)
	if version != 1 && version != 2 {
		return 0
	}
	return int(version)
}

// HeaderError says why a header is not used. It quotes no bytes of the disk.
type HeaderError struct {
	Reason string
	absent bool // there is nothing that cryptsetup would take for a header either
}

func (e *HeaderError) Error() string { return "LUKS header: " + e.Reason }

func refuse(reason string, args ...any) error {
	return &HeaderError{Reason: fmt.Sprintf(reason, args...)}
}

func absent(reason string, args ...any) error {
	return &HeaderError{Reason: fmt.Sprintf(reason, args...), absent: true}
}

func isAbsent(err error) bool {
	e, ok := errors.AsType[*HeaderError](err)
	return ok && e.absent
}

// Header is what has to be known of a header to open the disk.
type Header struct {
	Offset     int64 // of the payload in the disk
	SectorSize int   // of the payload: 512, 1024, 2048 or 4096
	KeySize    int   // bytes of the volume key: 32 or 64

	ivTweak  uint64
	digest   digest
	size     int64 // of a copy
	sequence uint64
}

// Read reads the header of a disk of so many bytes, and refuses it with a
// *HeaderError; any other error is one of reading r. Memory and time are bounded,
// and so is what cryptsetup needs to try a passphrase on it, whichever copy it takes.
func Read(r io.ReaderAt, size int64) (*Header, error) {
	first, firstErr := readCopy(r, size, 0, firstMagic)
	if firstErr != nil && !isAbsent(firstErr) {
		return nil, firstErr
	}
	best := first
	// The first copy tells where the second one is. Should cryptsetup not like the
	// first, it looks everywhere, so whatever copy there is has to be harmless.
	for at := int64(minCopySize); at <= maxCopySize; at *= 2 {
		second, err := readCopy(r, size, at, secondMagic)
		switch {
		case isAbsent(err):
		case err != nil:
			return nil, err
		case best == nil, first != nil && at == first.size && second.sequence > first.sequence:
			best = second
		}
	}
	if best == nil {
		return nil, firstErr
	}
	return best, nil
}

// binaryHeader is the binary part of a copy, byte for byte, up to what is unused.
type binaryHeader struct {
	Magic     [6]byte
	Version   uint16
	Size      uint64
	Sequence  uint64
	Label     [48]byte
	Algorithm [32]byte
	Salt      [64]byte
	UUID      [40]byte
	Subsystem [48]byte
	Offset    uint64
	_         [184]byte
	Checksum  [64]byte
}

const checksumOffset = 448

func readCopy(r io.ReaderAt, size, at int64, magic string) (*Header, error) {
	if at+minCopySize > size {
		return nil, absent("the disk is too small for one")
	}
	b := make([]byte, binarySize, minCopySize)
	if err := readFull(r, b, at); err != nil {
		return nil, err
	}
	var h binaryHeader
	if _, err := binary.Decode(b, binary.BigEndian, &h); err != nil {
		return nil, fmt.Errorf("decode LUKS header: %w", err)
	}
	switch {
	case string(h.Magic[:]) != magic:
		return nil, absent("there is none")
	case h.Version != 2:
		return nil, absent("it is of version %d, and only LUKS2 is supported", h.Version)
	case h.Size < minCopySize || h.Size > maxCopySize || h.Size&(h.Size-1) != 0 || int64(h.Size) > size-at:
		return nil, absent("it cannot have %d bytes", h.Size)
	case h.Offset != uint64(at):
		return nil, absent("it belongs elsewhere on the disk")
	}
	b = append(b, make([]byte, h.Size-binarySize)...)
	if err := readFull(r, b[binarySize:], at+binarySize); err != nil {
		return nil, err
	}
	if algorithm := string(bytes.TrimRight(h.Algorithm[:], "\x00")); algorithm != "sha256" {
		return nil, refuse("its checksum is none of SHA-256")
	}
	clear(b[checksumOffset : checksumOffset+len(h.Checksum)])
	if sum := sha256.Sum256(b); !bytes.Equal(sum[:], h.Checksum[:len(sum)]) {
		return nil, absent("its checksum is wrong")
	}
	header, err := parse(b[binarySize:], int64(h.Size), size)
	if err != nil {
		return nil, err
	}
	header.size, header.sequence = int64(h.Size), h.Sequence
	return header, nil
}

func readFull(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read LUKS header at %d: %w", at, err)
}
