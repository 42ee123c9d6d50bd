package luks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

const (
	firstMagic  = "LUKS\xba\xbe"
	secondMagic = "SKUL\xba\xbe"

	binarySize  = 4096
	minCopySize = 16 << 10
	maxCopySize = 4 << 20
)

// Version returns the LUKS version of a disk from its first bytes: 1 or 2, or 0 if it is not a LUKS
// disk. There is no later version.
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

// HeaderError is the reason why Read rejects a header. It contains no bytes of the disk.
type HeaderError struct {
	Reason string
	absent bool // cryptsetup would not use these bytes as a header either
}

// Error returns the reason with a prefix.
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

// Header contains the fields of a header that are needed to open the disk.
type Header struct {
	Offset     int64 // of the payload in the disk
	SectorSize int   // of the payload: 512, 1024, 2048 or 4096
	KeySize    int   // bytes of the volume key: 32 or 64

	ivTweak  uint64
	digest   digest
	size     int64 // of each of the two copies of the header
	sequence uint64
}

// Read reads the header of a disk of size bytes. A *HeaderError means that the header is rejected;
// any other error is a read error of r. Read uses bounded memory and time. It also limits the memory
// and time that cryptsetup needs to try a passphrase, whichever copy of the header cryptsetup uses.
func Read(r io.ReaderAt, size int64) (*Header, error) {
	first, firstErr := readCopy(r, size, 0, firstMagic)
	if firstErr != nil && !isAbsent(firstErr) {
		return nil, firstErr
	}
	best := first
	// The first copy contains the offset of the second one. If cryptsetup does not accept the first
	// copy, it searches for the second one at all possible offsets, so every copy on the disk must be
	// harmless.
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

// binaryHeader has the fields of the binary area of a header copy, in the order of their bytes. The
// rest of the area is not used.
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
		return nil, absent("the disk is too small for a header")
	}
	b := make([]byte, binarySize, minCopySize)
	if err := exactly.ReadAt(r, b, at); err != nil {
		return nil, fmt.Errorf("read LUKS header: %w", err)
	}
	var h binaryHeader
	if _, err := binary.Decode(b, binary.BigEndian, &h); err != nil {
		return nil, fmt.Errorf("decode LUKS header: %w", err)
	}
	switch {
	case string(h.Magic[:]) != magic:
		return nil, absent("the disk has no LUKS header")
	case h.Version != 2:
		return nil, absent("it has version %d: only version 2 is supported", h.Version)
	case h.Size < minCopySize || h.Size > maxCopySize || h.Size&(h.Size-1) != 0 || int64(h.Size) > size-at:
		return nil, absent("it has the invalid size %d", h.Size)
	case h.Offset != uint64(at):
		return nil, absent("it is for another offset on the disk")
	}
	b = append(b, make([]byte, h.Size-binarySize)...)
	if err := exactly.ReadAt(r, b[binarySize:], at+binarySize); err != nil {
		return nil, fmt.Errorf("read LUKS header: %w", err)
	}
	if algorithm := string(bytes.TrimRight(h.Algorithm[:], "\x00")); algorithm != "sha256" {
		return nil, refuse("its checksum is not SHA-256")
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

// metadata has the fields of the JSON of a header that this package needs. 64-bit numbers are strings.
type metadata struct {
	Keyslots map[string]keyslot
	Segments map[string]segment
	Digests  map[string]digest
	Config   struct {
		Requirements struct{ Mandatory []string }
	}
}

type segment struct {
	Type       string
	Offset     string
	Size       string
	IVTweak    string `json:"iv_tweak"`
	Encryption string
	SectorSize int `json:"sector_size"`
	Integrity  json.RawMessage
	Flags      []string
}

// MaxOffset is the largest supported offset of a payload. It is the default of cryptsetup, and of
// Longhorn. The first MaxOffset bytes of a disk are enough to open it.
const MaxOffset = 16 << 20

// parse parses the JSON area of a header copy.
func parse(area []byte, copySize, diskSize int64) (*Header, error) {
	text, rest, _ := bytes.Cut(area, []byte{0})
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return nil, refuse("its JSON is followed by other bytes")
	}
	if err := checkNames(text); err != nil {
		return nil, err
	}
	var m metadata
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, refuse("its JSON does not have the fields of LUKS2")
	}
	s, ok := m.Segments["0"]
	if !ok || len(m.Segments) != 1 {
		return nil, refuse("it has %d segments: only one is supported", len(m.Segments))
	}
	h, err := s.header(copySize, diskSize)
	if err != nil {
		return nil, err
	}
	if len(m.Config.Requirements.Mandatory) > 0 {
		return nil, refuse("it requires a feature that is not supported (is a reencryption in progress?)")
	}
	if h.KeySize, err = checkKeyslots(m.Keyslots, h.Offset); err != nil {
		return nil, err
	}
	if h.digest, err = findDigest(m.Digests); err != nil {
		return nil, err
	}
	return h, nil
}

func (s segment) header(copySize, diskSize int64) (*Header, error) {
	offset, err := strconv.ParseInt(s.Offset, 10, 64)
	tweak, tweakErr := strconv.ParseUint(s.IVTweak, 10, 64)
	switch {
	case s.Type != "crypt":
		return nil, refuse("its segment is not encrypted")
	case len(s.Flags) > 0:
		return nil, refuse("a reencryption is in progress: finish it with cryptsetup reencrypt")
	case s.Integrity != nil:
		return nil, refuse("its segment is authenticated: this is not supported")
	case s.Encryption != "aes-xts-plain64":
		return nil, refuse("its segment is not encrypted with aes-xts-plain64: other ciphers are not supported")
	case s.SectorSize != 512 && s.SectorSize != 1024 && s.SectorSize != 2048 && s.SectorSize != 4096:
		return nil, refuse("its segment has sectors of %d bytes: only 512, 1024, 2048 and 4096 are allowed", s.SectorSize)
	case err != nil || tweakErr != nil || offset < 2*copySize || offset%int64(s.SectorSize) != 0:
		return nil, refuse("its segment has an invalid offset or size")
	case offset > MaxOffset:
		return nil, refuse("its payload begins at %d: at most %d is supported", offset, int64(MaxOffset))
	case offset > diskSize:
		return nil, refuse("its payload begins at %d, but the disk has %d bytes: the disk is truncated", offset, diskSize)
	case s.Size != "dynamic":
		return nil, refuse("its segment has a fixed size: this is not supported")
	}
	return &Header{Offset: offset, SectorSize: s.SectorSize, ivTweak: tweak}, nil
}

// maxNesting is greater than the nesting of any real header.
const maxNesting = 16

// checkNames rejects JSON that cryptsetup may read in another way. encoding/json ignores the case of names, and
// equates some letters with ASCII letters (ſ with s). If a name occurs twice, the two may use different values.
func checkNames(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	var names []map[string]bool // of each enclosing object; nil for arrays
	var isName bool             // the next string is a name
	for first := true; first || len(names) > 0; first = false {
		token, err := d.Token()
		if err != nil {
			return refuse("its JSON is invalid")
		}
		switch token := token.(type) {
		case json.Delim:
			switch token {
			case '{':
				names, isName = append(names, map[string]bool{}), true
			case '[':
				names, isName = append(names, nil), false
			default:
				names = names[:len(names)-1]
				isName = len(names) > 0 && names[len(names)-1] != nil
			}
			if len(names) > maxNesting {
				return refuse("its JSON is nested too deeply")
			}
			continue
		case string:
			if isName {
				name, seen := strings.ToLower(token), names[len(names)-1]
				if seen[name] || strings.ContainsFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) {
					return refuse("its JSON has an ambiguous name")
				}
				seen[name], isName = true, false
				continue
			}
		}
		isName = len(names) > 0 && names[len(names)-1] != nil
	}
	if len(bytes.TrimSpace(text[d.InputOffset():])) > 0 {
		return refuse("its JSON is followed by other bytes")
	}
	return nil
}
