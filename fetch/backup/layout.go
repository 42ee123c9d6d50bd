package backup

import (
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// blockSize is the unit of a backup. Only the last block of an image may be shorter.
const blockSize = 2 << 20

// The folders of a target, as in Longhorn.
const (
	imagesFolder = "backupstore/backing-images/backing-images"
	blocksFolder = "backupstore/backing-images/blocks"
	cfgName      = "backing-image.cfg"
	blockSuffix  = ".blk"
)

func cfgKey(name string) string { return path.Join(imagesFolder, name, cfgName) }

// blockID identifies a block: the first half of the SHA-512 of its bytes. The zero blockID means
// "none".
type blockID [sha512.Size / 2]byte

// blockIDOf returns the id of a block with these bytes.
func blockIDOf(data []byte) (s blockID) {
	whole := sha512.Sum512(data)
	copy(s[:], whole[:])
	return s
}

// String returns 64 hex digits, as in a cfg and in the name of a block file.
func (s blockID) String() string { return hex.EncodeToString(s[:]) }

func parseSum(digits string) (s blockID, err error) {
	if len(digits) != 2*len(s) || strings.ToLower(digits) != digits {
		return blockID{}, fmt.Errorf("its checksum must have %d lower-case hex digits", 2*len(s))
	}
	if _, err := hex.Decode(s[:], []byte(digits)); err != nil {
		return blockID{}, fmt.Errorf("its checksum must have %d lower-case hex digits", 2*len(s))
	}
	return s, nil
}

func (s blockID) key() string {
	digits := s.String()
	return path.Join(blocksFolder, digits[:2], digits[2:4], digits+blockSuffix)
}

// parseBlockFile returns the block of a file name, and false for other files.
func parseBlockFile(file string) (blockID, bool) {
	digits, ok := strings.CutSuffix(file, blockSuffix)
	if !ok {
		return blockID{}, false
	}
	s, err := parseSum(digits)
	return s, err == nil
}

const maxName = 64

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]+$`)

// checkName returns an error if name is not a valid name of a backup. A valid name is one element
// of a path, without slashes.
func checkName(name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("the name of a backup has at most %d characters", maxName)
	case !namePattern.MatchString(name):
		return fmt.Errorf("%.80q is not a valid name of a backup: use 2 to %d letters, digits, \"_\", \".\" and \"-\", the first a letter or digit", name, maxName)
	}
	return nil
}

const nameParameter = "backingImage"

// ParseURL splits the address of a backup, "<target>?backingImage=<name>", into its target and its
// name. Other parameters of the query remain part of the target.
func ParseURL(address string) (target, name string, err error) {
	base, query, _ := strings.Cut(address, "?")
	var names, others []string
	for pair := range strings.SplitSeq(query, "&") {
		if value, ok := strings.CutPrefix(pair, nameParameter+"="); ok {
			names = append(names, value)
		} else if pair != "" {
			others = append(others, pair)
		}
	}
	switch {
	case base == "":
		return "", "", errors.New("the address of a backup has no target: use <target>?backingImage=<name>")
	case len(names) != 1:
		return "", "", errors.New("the address of a backup must contain backingImage=<name> once: use <target>?backingImage=<name>")
	}
	if name, err = url.QueryUnescape(names[0]); err != nil {
		return "", "", fmt.Errorf("%.80q is not a valid name of a backup", names[0])
	}
	if err := checkName(name); err != nil {
		return "", "", err
	}
	if len(others) > 0 {
		base += "?" + strings.Join(others, "&")
	}
	return base, name, nil
}

// URL returns the address of a backup, in the form that ParseURL parses.
func URL(target, name string) string {
	separator := "?"
	if strings.Contains(target, "?") {
		separator = "&"
	}
	return target + separator + nameParameter + "=" + name
}
