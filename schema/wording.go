package schema

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

func (sh *shape) scalar() bool { return sh.kind != listKind && sh.kind != mapKind }

// wrong says in words what v has to be instead.
func wrong(sh *shape, v *value) string {
	if sh.private && v.kind == textKind {
		return "has to be " + sh.want
	}
	return fmt.Sprintf("has to be %s, not %s", sh.want, display(sh, v))
}

// display is v as a message may have it: what may hold a secret is not shown.
func display(sh *shape, v *value) string {
	switch {
	case !v.scalar(), sh.private:
		return v.kind.describe()
	case v.kind != textKind:
		return v.text
	case !showable(v.text):
		return "that"
	}
	return fmt.Sprintf("%q", v.text)
}

var plainText = regexp.MustCompile(`^[\w .,%/+-]{0,48}$`)

// showable reports whether s is short and surely no address.
func showable(s string) bool { return plainText.MatchString(s) }

// explain says what is wrong with the value at a path where CUE found a
// mistake, in the words of whoever knows best.
func explain(root *shape, v *value, at fieldPath) fault {
	sh := root.at(at)
	found, _ := v.find(at, Position{})
	if found == nil {
		return missing(sh, at)
	}
	f := fault{path: at}
	switch {
	case found.kind == mapKind:
		f.msg, f.atName = "has to have "+sh.want+countOf(found), true
	case found.kind == textKind && len(at) > 0 && better(at[len(at)-1], found.text) != nil:
		f.msg = better(at[len(at)-1], found.text).Error()
	default:
		f.msg = wrong(sh, found)
		if sh.kind != textKind && found.kind == textKind && unquoted.MatchString(found.text) {
			f.hint = "write it without quotes"
		}
	}
	return f
}

var unquoted = regexp.MustCompile(`^(true|false|[0-9]+)$`)

func missing(sh *shape, at fieldPath) fault {
	if sh.missing != "" {
		return fault{path: at, msg: sh.missing, hint: "has to be " + sh.want}
	}
	return fault{path: at, msg: "is missing", hint: "has to be " + sh.want}
}

func countOf(v *value) string {
	names := make([]string, 0, len(v.fields))
	for _, f := range v.fields {
		names = append(names, f.name)
	}
	if len(names) == 0 {
		return "; it has none"
	}
	return "; it has " + strings.Join(names, " and ")
}

// better returns what the package that reads a field says of its value.
func better(field, text string) error {
	switch field {
	case "checksum", "packedChecksum":
		_, err := disk.ParseDigest(text)
		return err
	case "uuid":
		return disk.CheckUUID(text)
	case "backingImage":
		return disk.CheckName(text)
	}
	return nil
}

// at returns the shape at a path, or the last one that the schema knows on it.
func (sh *shape) at(p fieldPath) *shape {
	for _, step := range p {
		next := sh.fields[step]
		if next == nil {
			next = sh.elements
		}
		if next == nil {
			return sh
		}
		sh = next
	}
	return sh
}

var placeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$`)

// checkPlaceName says why name cannot name a node or a disk.
func checkPlaceName(name string) error {
	if placeName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("name %.60q: use letters, digits, \"_\", \".\" and \"-\", and begin with a letter or digit", name)
}
