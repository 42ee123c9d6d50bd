package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// structure checks what CUE would say badly or hide behind another mistake:
// fields that are not known or given twice, values left out, texts without
// quotes. What it finds is left out of the result, and CUE checks the rest.
type structure struct {
	root   *shape
	faults []document.Problem
}

// fault records f. A file of nonsense has enough of them.
func (s *structure) fault(f document.Problem) {
	if len(s.faults) < maxProblems {
		s.faults = append(s.faults, f)
	}
}

// maxElements bounds a list, and a mapping from names: CUE cannot be stopped,
// so it gets nothing that takes it long.
const maxElements = 1000

// plain returns v as CUE takes it, and false where nothing is left of it.
func (s *structure) plain(v *document.Value, sh *shape, at document.Path) (any, bool) {
	switch {
	case v.Kind == document.Null:
		s.fault(document.Problem{Path: at, AtName: true, Message: "has no value", Hint: emptyHint(sh, at)})
	case sh.kind == document.Map && v.Kind != document.Map:
		s.fault(document.Problem{Path: at, Message: "has to be a mapping, not " + v.Kind.String(), Hint: mappingHint(sh)})
	case sh.kind == document.List && v.Kind != document.List:
		s.fault(document.Problem{Path: at, Message: wrong(sh, v), Hint: listHint(sh, v)})
	case sh.kind == document.Text && (v.Kind == document.Number || v.Kind == document.Bool):
		s.fault(quoteIt(v, sh, at))
	case v.Kind == document.Number && v.Number == nil:
		s.fault(document.Problem{Path: at, Message: wrong(sh, v)})
	case sh.scalar() && !v.IsScalar():
		s.fault(document.Problem{Path: at, Message: wrong(sh, v)})
	case max(len(v.Items), len(v.Fields)) > maxElements:
		s.fault(document.Problem{Path: at, Message: fmt.Sprintf("has more than %d elements", maxElements)})
	case v.Kind == document.Map:
		return s.mapping(v, sh, at), true
	case v.Kind == document.List:
		return s.list(v, sh, at), true
	default:
		return plainScalar(v), true
	}
	return nil, false
}

func plainScalar(v *document.Value) any {
	switch v.Kind {
	case document.Number:
		return v.Number
	case document.Bool:
		return v.Text == "true"
	}
	return v.Text
}

func (s *structure) list(v *document.Value, sh *shape, at document.Path) []any {
	list := make([]any, 0, len(v.Items))
	for i, item := range v.Items {
		if p, ok := s.plain(item, sh.elements, at.WithIndex(i)); ok {
			list = append(list, p)
		}
	}
	return list
}

func (s *structure) mapping(v *document.Value, sh *shape, at document.Path) map[string]any {
	m := make(map[string]any, len(v.Fields))
	first := make(map[string]document.Position, len(v.Fields))
	for _, f := range v.Fields {
		below := at.With(f.Name)
		if _, twice := first[f.Name]; twice {
			s.fault(document.Problem{Path: below, AtName: true, Message: "is given twice", Hint: "keep one of them"})
			continue
		}
		first[f.Name] = f.Pos
		fieldShape, known := sh.fields[f.Name]
		if !known && sh.elements != nil {
			fieldShape, known = sh.elements, true
			if err := checkPlaceName(f.Name); err != nil {
				s.fault(document.Problem{Path: below, AtName: true, Message: err.Error()})
				continue
			}
		}
		if !known && sh.open {
			continue
		}
		if !known {
			s.fault(document.Problem{Path: below, AtName: true, Message: "unknown field", Hint: s.unknownHint(f.Name, sh)})
			continue
		}
		if p, ok := s.plain(f.Value, fieldShape, below); ok {
			m[f.Name] = p
		}
	}
	return m
}

func (s *structure) unknownHint(name string, sh *shape) string {
	if near, ok := document.Nearest(name, sh.names); ok {
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
func (sh *shape) whereIs(name string) document.Path {
	for _, n := range sh.names {
		below := sh.fields[n]
		if slices.Contains(below.names, name) {
			return document.Path{n}
		}
		if at := below.whereIs(name); len(at) > 0 {
			return append(document.Path{n}, at...)
		}
	}
	return nil
}

func emptyHint(sh *shape, at document.Path) string {
	if sh.kind == document.Map && len(sh.names) == 0 && len(at) > 0 {
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

func listHint(sh *shape, v *document.Value) string {
	if v.Kind != document.Text || sh.private || !showable(v.Text) {
		return ""
	}
	return fmt.Sprintf("write [%s]", v.Text)
}

// quoteIt is what to say of a text without quotes that YAML takes for
// something else: 00000224 is 148 there.
func quoteIt(v *document.Value, sh *shape, at document.Path) document.Problem {
	f := document.Problem{Path: at, Message: fmt.Sprintf("has to be a text, and without quotes it is %s", v.Kind.String())}
	if !sh.private {
		f.Hint = fmt.Sprintf("quote it: %q", v.Text)
	}
	return f
}

func (sh *shape) scalar() bool { return sh.kind != document.List && sh.kind != document.Map }

// wrong says in words what v has to be instead.
func wrong(sh *shape, v *document.Value) string {
	if sh.private && v.Kind == document.Text {
		return "has to be " + sh.want
	}
	return fmt.Sprintf("has to be %s, not %s", sh.want, display(sh, v))
}

// display is v as a message may have it: what may hold a secret is not shown.
func display(sh *shape, v *document.Value) string {
	switch {
	case !v.IsScalar(), sh.private:
		return v.Kind.String()
	case v.Kind != document.Text:
		return v.Text
	case !showable(v.Text):
		return "that"
	}
	return fmt.Sprintf("%q", v.Text)
}

var plainText = regexp.MustCompile(`^[\w .,%/+-]{0,48}$`)

// showable reports whether s is short and surely no address.
func showable(s string) bool { return plainText.MatchString(s) }

// explain says what is wrong with the value at a path where CUE found a
// mistake, in the words of whoever knows best.
func explain(root *shape, v *document.Value, at document.Path) document.Problem {
	sh := root.at(at)
	found, _ := v.Find(at, document.Position{})
	if found == nil {
		return missing(sh, at)
	}
	f := document.Problem{Path: at}
	switch {
	case found.Kind == document.Map:
		f.Message, f.AtName = "has to have "+sh.want+countOf(found), true
	case found.Kind == document.Text && len(at) > 0 && better(at[len(at)-1], found.Text) != nil:
		f.Message = better(at[len(at)-1], found.Text).Error()
	default:
		f.Message = wrong(sh, found)
		if sh.kind != document.Text && found.Kind == document.Text && unquoted.MatchString(found.Text) {
			f.Hint = "write it without quotes"
		}
	}
	return f
}

var unquoted = regexp.MustCompile(`^(true|false|[0-9]+)$`)

func missing(sh *shape, at document.Path) document.Problem {
	if sh.missing != "" {
		return document.Problem{Path: at, Message: sh.missing, Hint: "has to be " + sh.want}
	}
	return document.Problem{Path: at, Message: "is missing", Hint: "has to be " + sh.want}
}

func countOf(v *document.Value) string {
	names := make([]string, 0, len(v.Fields))
	for _, f := range v.Fields {
		names = append(names, f.Name)
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
func (sh *shape) at(p document.Path) *shape {
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
