package disk

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// ID identifies one generation of an image: its name, and 8 hex digits that differ between
// the generations of one name. IDs are comparable with ==.
type ID struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
}

// MaxName is the maximum length of an image name, in bytes.
const MaxName = 40

var (
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]+$`)
	uuidPattern = regexp.MustCompile(`^[0-9a-f]{8}$`)
)

// CheckName returns an error if name is not a valid image name. A valid name has 2 to 40 characters
// of a-z, 0-9, "_", "." and "-" and begins with a letter or digit. It is therefore always one path
// element and never a hidden file.
func CheckName(name string) error {
	if n := len(name); n < 2 || n > MaxName {
		return fmt.Errorf("name %q: it must have 2 to %d characters", name, MaxName)
	}
	if !namePattern.MatchString(name) {
		return fmt.Errorf("name %q: use a-z, 0-9, \"_\", \".\" and \"-\", and begin with a letter or digit", name)
	}
	return nil
}

// CheckUUID returns an error if s is not the 8 lower-case hex digits of a generation.
func CheckUUID(s string) error {
	if !uuidPattern.MatchString(s) {
		return fmt.Errorf("uuid %q: it must be 8 hex digits in lower case, in quotes", s)
	}
	return nil
}

// String returns the name of the folder below backing-images, "<name>-<uuid>".
func (id ID) String() string { return id.Name + "-" + id.UUID }

// ParseID parses the name of a folder below backing-images. The last "-" separates name and uuid: the
// name may contain "-", the uuid cannot.
func ParseID(folder string) (ID, error) {
	i := strings.LastIndexByte(folder, '-')
	if i < 0 {
		return ID{}, fmt.Errorf("folder %q is not <name>-<uuid>", folder)
	}
	id := ID{Name: folder[:i], UUID: folder[i+1:]}
	if err := CheckName(id.Name); err != nil {
		return ID{}, err
	}
	if err := CheckUUID(id.UUID); err != nil {
		return ID{}, err
	}
	return id, nil
}

// folder and file return paths below the root of the disk.
func (id ID) folder() string          { return path.Join(imagesFolder, id.String()) }
func (id ID) file(name string) string { return path.Join(imagesFolder, id.String(), name) }
