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

// The JSON of a header, as far as it matters here. Its 64-bit numbers are strings.
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

// MaxOffset bounds where a payload may begin. It is what Longhorn and cryptsetup
// make of it by default, and all that has to be looked at to find the key.
const MaxOffset = 16 << 20

// parse reads the JSON area of a copy of so many bytes on a disk of so many.
func parse(area []byte, copySize, diskSize int64) (*Header, error) {
	text, rest, _ := bytes.Cut(area, []byte{0})
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return nil, refuse("there is something behind its JSON")
	}
	if err := checkNames(text); err != nil {
		return nil, err
	}
	var m metadata
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, refuse("its JSON is not that of LUKS2")
	}
	s, ok := m.Segments["0"]
	if !ok || len(m.Segments) != 1 {
		return nil, refuse("it has %d segments, and only disks with one are supported", len(m.Segments))
	}
	h, err := s.header(copySize, diskSize)
	if err != nil {
		return nil, err
	}
	if len(m.Config.Requirements.Mandatory) > 0 {
		return nil, refuse("it requires what is not supported (is a reencryption under way?)")
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
		return nil, refuse("a reencryption is under way: finish it with cryptsetup reencrypt")
	case s.Integrity != nil:
		return nil, refuse("its segment is authenticated, which is not supported")
	case s.Encryption != "aes-xts-plain64":
		return nil, refuse("its segment is not encrypted with aes-xts-plain64, which alone is supported")
	case s.SectorSize != 512 && s.SectorSize != 1024 && s.SectorSize != 2048 && s.SectorSize != 4096:
		return nil, refuse("its segment cannot have sectors of %d bytes", s.SectorSize)
	case err != nil || tweakErr != nil || offset < 2*copySize || offset%int64(s.SectorSize) != 0:
		return nil, refuse("its segment is misplaced")
	case offset > MaxOffset:
		return nil, refuse("its payload begins at %d, and %d at most is supported", offset, int64(MaxOffset))
	case offset > diskSize:
		return nil, refuse("its payload begins at %d of %d bytes: the disk is cut off", offset, diskSize)
	case s.Size != "dynamic":
		return nil, refuse("its segment has a size of its own, which is not supported")
	}
	return &Header{Offset: offset, SectorSize: s.SectorSize, ivTweak: tweak}, nil
}

// isASCII is for names: encoding/json takes some letters for others that look alike.
func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

// maxNesting is more than any header has.
const maxNesting = 16

// checkNames refuses JSON that could be read in two ways: by encoding/json, which does
// not mind the case of names, and by cryptsetup.
func checkNames(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	var names []map[string]bool // of the objects around, nil for arrays
	var isName bool             // the next string is one
	for first := true; first || len(names) > 0; first = false {
		token, err := d.Token()
		if err != nil {
			return refuse("its JSON cannot be read")
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
				if seen[name] || !isASCII(name) {
					return refuse("its JSON has a name that can be read in two ways")
				}
				seen[name], isName = true, false
				continue
			}
		}
		isName = len(names) > 0 && names[len(names)-1] != nil
	}
	if len(bytes.TrimSpace(text[d.InputOffset():])) > 0 {
		return refuse("there is something behind its JSON")
	}
	return nil
}
