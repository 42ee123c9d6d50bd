package luks

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
