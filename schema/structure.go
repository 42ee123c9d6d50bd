package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// structure checks what CUE would say badly or hide behind another mistake:
// fields that are not known or given twice, values left out, texts without
// quotes. What it finds is left out of the result, and CUE checks the rest.
type structure struct {
	root   *shape
	faults []fault
}

// fault records f. A file of nonsense has enough of them.
func (s *structure) fault(f fault) {
	if len(s.faults) < maxProblems {
		s.faults = append(s.faults, f)
	}
}

// maxElements bounds a list, and a mapping from names: CUE cannot be stopped,
// so it gets nothing that takes it long.
const maxElements = 1000

// plain returns v as CUE takes it, and false where nothing is left of it.
func (s *structure) plain(v *value, sh *shape, at fieldPath) (any, bool) {
	switch {
	case v.kind == nullKind:
		s.fault(fault{path: at, atName: true, msg: "has no value", hint: emptyHint(sh, at)})
	case sh.kind == mapKind && v.kind != mapKind:
		s.fault(fault{path: at, msg: "has to be a mapping, not " + v.kind.describe(), hint: mappingHint(sh)})
	case sh.kind == listKind && v.kind != listKind:
		s.fault(fault{path: at, msg: wrong(sh, v), hint: listHint(sh, v)})
	case sh.kind == textKind && (v.kind == numberKind || v.kind == boolKind):
		s.fault(quoteIt(v, sh, at))
	case v.kind == numberKind && v.number == nil:
		s.fault(fault{path: at, msg: wrong(sh, v)})
	case sh.scalar() && !v.scalar():
		s.fault(fault{path: at, msg: wrong(sh, v)})
	case max(len(v.items), len(v.fields)) > maxElements:
		s.fault(fault{path: at, msg: fmt.Sprintf("has more than %d elements", maxElements)})
	case v.kind == mapKind:
		return s.mapping(v, sh, at), true
	case v.kind == listKind:
		return s.list(v, sh, at), true
	default:
		return v.plainScalar(), true
	}
	return nil, false
}

func (v *value) plainScalar() any {
	switch v.kind {
	case numberKind:
		return v.number
	case boolKind:
		return v.text == "true"
	}
	return v.text
}

func (s *structure) list(v *value, sh *shape, at fieldPath) []any {
	list := make([]any, 0, len(v.items))
	for i, item := range v.items {
		if p, ok := s.plain(item, sh.elements, at.with(fmt.Sprintf("[%d]", i))); ok {
			list = append(list, p)
		}
	}
	return list
}

func listIndex(step string) (int, bool) {
	i, err := strconv.Atoi(strings.Trim(step, "[]"))
	return i, err == nil && i >= 0
}

func (s *structure) mapping(v *value, sh *shape, at fieldPath) map[string]any {
	m := make(map[string]any, len(v.fields))
	first := make(map[string]Position, len(v.fields))
	for _, f := range v.fields {
		below := at.with(f.name)
		if _, twice := first[f.name]; twice {
			s.fault(fault{path: below, atName: true, msg: "is given twice", hint: "keep one of them"})
			continue
		}
		first[f.name] = f.pos
		fieldShape, known := sh.fields[f.name]
		if !known && sh.elements != nil {
			fieldShape, known = sh.elements, true
			if err := checkPlaceName(f.name); err != nil {
				s.fault(fault{path: below, atName: true, msg: err.Error()})
				continue
			}
		}
		if !known && sh.open {
			continue
		}
		if !known {
			s.fault(fault{path: below, atName: true, msg: "unknown field", hint: s.unknownHint(f.name, sh)})
			continue
		}
		if p, ok := s.plain(f.value, fieldShape, below); ok {
			m[f.name] = p
		}
	}
	return m
}

func (s *structure) unknownHint(name string, sh *shape) string {
	if near := nearest(name, sh.names); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	if at := s.root.whereIs(name); len(at) > 0 {
		return fmt.Sprintf("%q belongs in %s", name, at)
	}
	if name == "sourceType" || name == "sourceParameters" {
		return "write \"source: {download: {url: …}}\""
	}
	if len(sh.names) == 0 {
		return "no field may stand here"
	}
	return "known here: " + strings.Join(sh.names, ", ")
}

// whereIs returns the path to the mapping that knows a field of that name.
func (sh *shape) whereIs(name string) fieldPath {
	for _, n := range sh.names {
		below := sh.fields[n]
		if slices.Contains(below.names, name) {
			return fieldPath{n}
		}
		if at := below.whereIs(name); len(at) > 0 {
			return append(fieldPath{n}, at...)
		}
	}
	return nil
}

func emptyHint(sh *shape, at fieldPath) string {
	if sh.kind == mapKind && len(sh.names) == 0 && len(at) > 0 {
		return fmt.Sprintf("write \"%s: {}\"", at[len(at)-1])
	}
	return "give it one, or remove the line"
}

func mappingHint(sh *shape) string {
	if sh.elements != nil {
		return "give each a name: \"name: {…}\""
	}
	if len(sh.names) == 0 {
		return "write {}"
	}
	return "known there: " + strings.Join(sh.names, ", ")
}

func listHint(sh *shape, v *value) string {
	if v.kind != textKind || sh.private || !showable(v.text) {
		return ""
	}
	return fmt.Sprintf("write [%s]", v.text)
}

// quoteIt is what to say of a text without quotes that YAML takes for
// something else: 00000224 is 148 there.
func quoteIt(v *value, sh *shape, at fieldPath) fault {
	f := fault{path: at, msg: fmt.Sprintf("has to be a text, and without quotes it is %s", v.kind.describe())}
	if !sh.private {
		f.hint = fmt.Sprintf("quote it: %q", v.text)
	}
	return f
}

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
