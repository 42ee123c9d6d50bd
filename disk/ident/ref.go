// Package ident has the identifiers that all packages share: of a generation of an image (ID), of its bytes (Digest), of a
// disk (DiskRef) and of a copy (CopyRef). All are values that are comparable with ==. It imports no other package of this program.
package ident

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// ID identifies one generation of an image: its name, and 8 hex digits that differ between
// the generations of one name. IDs are comparable with ==.
type ID struct {
	Name string
	UUID string
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

// MarshalText returns String, or nothing for the zero value.
func (id ID) MarshalText() ([]byte, error) { return marshal(id) }

// UnmarshalText decodes what MarshalText returns.
func (id *ID) UnmarshalText(text []byte) error { return unmarshal(id, text, ParseID) }

// Compare orders by name, then by uuid.
func (id ID) Compare(other ID) int {
	return cmp.Or(strings.Compare(id.Name, other.Name), strings.Compare(id.UUID, other.UUID))
}

// DiskRef identifies a disk by the names in the configuration.
type DiskRef struct{ Node, Disk string }

// String returns "node/disk".
func (r DiskRef) String() string { return r.Node + "/" + r.Disk }

// MarshalText returns String, or nothing for the zero value.
func (r DiskRef) MarshalText() ([]byte, error) { return marshal(r) }

// UnmarshalText decodes what MarshalText returns.
func (r *DiskRef) UnmarshalText(text []byte) error { return unmarshal(r, text, ParseDiskRef) }

// Compare orders by node, then by disk.
func (r DiskRef) Compare(other DiskRef) int {
	return cmp.Or(strings.Compare(r.Node, other.Node), strings.Compare(r.Disk, other.Disk))
}

// ParseDiskRef parses NODE/DISK, the form that String returns. The names need not be declared.
func ParseDiskRef(text string) (DiskRef, error) {
	node, disk, ok := strings.Cut(text, "/")
	if !ok || node == "" || disk == "" || strings.Contains(disk, "/") {
		return DiskRef{}, errors.New("write NODE/DISK")
	}
	return DiskRef{Node: node, Disk: disk}, nil
}

// CopyRef names one copy in the cluster: a folder on a disk. As text it is
// <node>/<disk>/<folder>.
type CopyRef struct {
	Disk DiskRef
	ID   ID
}

// String returns <node>/<disk>/<folder>.
func (c CopyRef) String() string { return c.Disk.String() + "/" + c.ID.String() }

// MarshalText returns String, or nothing for the zero value.
func (c CopyRef) MarshalText() ([]byte, error) { return marshal(c) }

// UnmarshalText decodes what MarshalText returns.
func (c *CopyRef) UnmarshalText(text []byte) error { return unmarshal(c, text, ParseCopyRef) }

// ParseCopyRef parses <node>/<disk>/<folder>.
func ParseCopyRef(text string) (CopyRef, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return CopyRef{}, fmt.Errorf("%q is not NODE/DISK/FOLDER", text)
	}
	id, err := ParseID(parts[2])
	return CopyRef{DiskRef{Node: parts[0], Disk: parts[1]}, id}, err
}

// Compare orders by disk, then by ID.
func (c CopyRef) Compare(other CopyRef) int {
	return cmp.Or(c.Disk.Compare(other.Disk), c.ID.Compare(other.ID))
}

func marshal[T interface {
	comparable
	fmt.Stringer
}](value T) ([]byte, error) {
	if value == *new(T) {
		return nil, nil
	}
	return []byte(value.String()), nil
}

func unmarshal[T any](value *T, text []byte, parse func(string) (T, error)) (err error) {
	*value = *new(T)
	if len(text) > 0 {
		*value, err = parse(string(text))
	}
	return err
}
