package load

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// structure finds mistakes that CUE would report with an unclear message, or not at all
// because of another mistake: unknown, duplicate and missing fields, missing values, strings without
// quotes. CUE gets the value without the parts that have such a mistake (see plain).
type structure struct {
	root     *spec
	problems []document.Problem
	warnings []document.Problem
	missing  []document.Path // missing fields beside an unknown field, which probably is one of them, misspelled
}

// maxProblems limits the problems of one definition.
const maxProblems = 100

// report adds a problem.
func (s *structure) report(p document.Problem) {
	if len(s.problems) < maxProblems {
		s.problems = append(s.problems, p)
	}
}

// maxElements limits the elements of a list or mapping. The evaluation of CUE cannot be
// interrupted, so CUE must not get a value whose evaluation takes long.
const maxElements = 1000

// plain returns v as a Go value for CUE, and reports the mistakes. It leaves out the parts of v
// that have a mistake, and returns false if v itself has one.
func (s *structure) plain(v *document.Value, sp *spec, at document.Path) (any, bool) {
	switch {
	case v.Kind == document.Null:
		s.report(document.Problem{Path: at, AtName: true, Message: "has no value", Hint: nullHint(sp, at)})
	case sp.kind == document.Map && v.Kind != document.Map:
		s.report(document.Problem{Path: at, Message: "must be a mapping, not " + v.Kind.String(), Hint: mappingHint(sp)})
	case sp.kind == document.List && v.Kind != document.List:
		s.report(document.Problem{Path: at, Message: mustBe(sp, v), Hint: listHint(sp, v)})
	case sp.kind == document.Text && (v.Kind == document.Number || v.Kind == document.Bool):
		s.report(quoteIt(v, sp, at))
	case v.Kind == document.Number && v.Number == nil:
		s.report(document.Problem{Path: at, Message: mustBe(sp, v)})
	case sp.isScalar() && !v.IsScalar():
		s.report(document.Problem{Path: at, Message: mustBe(sp, v)})
	case max(len(v.Items), len(v.Fields)) > maxElements:
		s.report(document.Problem{Path: at, Message: fmt.Sprintf("has more than %d elements", maxElements)})
	case v.Kind == document.Map:
		return s.mapping(v, sp, at)
	case v.Kind == document.List:
		return s.list(v, sp, at), true
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

func (s *structure) list(v *document.Value, sp *spec, at document.Path) []any {
	list := make([]any, 0, len(v.Items))
	for i, item := range v.Items {
		if p, ok := s.plain(item, sp.elements, at.WithIndex(i)); ok {
			list = append(list, p)
		}
	}
	return list
}

func (s *structure) mapping(v *document.Value, sp *spec, at document.Path) (map[string]any, bool) {
	m := make(map[string]any, len(v.Fields))
	seen := make(map[string]bool, len(v.Fields))
	before, unknown := len(s.problems), false
	for i, f := range v.Fields {
		below := at.With(f.Name)
		if seen[f.Name] {
			s.report(document.Problem{Path: below, AtName: true, Message: "duplicate field", Hint: "keep one of them"})
			continue
		}
		seen[f.Name] = true
		fieldSpec := sp.field(f.Name)
		if fieldSpec == nil {
			unknown = s.unknownField(v.Fields, i, sp, below) || unknown
			continue
		}
		if err := checkNodeName(f.Name); fieldSpec == sp.elements && err != nil {
			s.report(document.Problem{Path: below, AtName: true, Message: err.Error()})
			continue
		}
		if p, ok := s.plain(f.Value, fieldSpec, below); ok {
			m[f.Name] = p
		}
	}
	for _, name := range sp.names {
		switch below := sp.fields[name]; {
		case !below.required || seen[name]:
		case unknown:
			s.missing = append(s.missing, at.With(name))
		default:
			s.report(missingValue(below, at.With(name)))
		}
	}
	if known := knownFields(v, sp); sp.one && known != 1 && (known > 1 || len(s.problems) == before) {
		s.report(document.Problem{Path: at, AtName: true, Message: "must have " + sp.want + fieldNames(v)})
		return nil, false
	}
	return m, !sp.one || len(m) == 1
}

// unknownField reports a field that the schema does not have, unless the schema ignores it. It returns whether the field
// is a mistake.
func (s *structure) unknownField(fields []document.Field, i int, sp *spec, at document.Path) bool {
	ours := sp.reserved != "" && strings.HasPrefix(fields[i].Name, sp.reserved)
	if sp.open && !ours || len(s.problems) == maxProblems {
		return !sp.open
	}
	hint, meant := s.unknownFieldHint(fields[i].Name, sp)
	if i > 0 && fields[i-1].Value.Kind == document.Null && sp.isMapping(fields[i-1].Name) {
		hint, meant = fmt.Sprintf("if it belongs in %s, indent it", fields[i-1].Name), true
	}
	if sp.grows && (ours || !meant) {
		if len(s.warnings) < maxProblems {
			s.warnings = append(s.warnings, document.Problem{Path: at, AtName: true, Message: "is not a field that this program knows: it is ignored", Hint: hint})
		}
		return false
	}
	s.report(document.Problem{Path: at, AtName: true, Message: "unknown field", Hint: hint})
	return true
}

// isMapping reports whether a field of a mapping is itself a mapping.
func (s *spec) isMapping(field string) bool {
	below := s.fields[field]
	return below != nil && below.kind == document.Map
}

// unknownFieldHint returns a hint, and whether the hint says which known field is meant.
func (s *structure) unknownFieldHint(name string, sp *spec) (hint string, meant bool) {
	if near, ok := document.Nearest(name, sp.names); ok {
		return fmt.Sprintf("did you mean %q?", near), true
	}
	if at := s.root.find(name); len(at) > 0 {
		return fmt.Sprintf("%q belongs in %s", name, at), true
	}
	if name == "sourceType" || name == "sourceParameters" {
		return "write \"source: {download: {url: …}}\"", true
	}
	if len(sp.names) == 0 {
		return "no fields are allowed here", false
	}
	return "known fields: " + strings.Join(sp.names, ", "), false
}

func nullHint(sp *spec, at document.Path) string {
	if sp.kind == document.Map && len(sp.names) == 0 && len(at) > 0 {
		return fmt.Sprintf("write \"%s: {}\"", at[len(at)-1])
	}
	return "set it, or remove the line"
}

func mappingHint(sp *spec) string {
	if sp.elements != nil {
		return "give each entry a name: \"name: {…}\""
	}
	if len(sp.names) == 0 {
		return "write {}"
	}
	return "known fields: " + strings.Join(sp.names, ", ")
}

func listHint(sp *spec, v *document.Value) string {
	if v.Kind != document.Text || sp.private || !showable(v.Text) {
		return ""
	}
	return fmt.Sprintf("write [%s]", v.Text)
}

// quoteIt returns the problem of a string without quotes that YAML reads as a value of
// another kind: 00000224 is 148 in YAML.
func quoteIt(v *document.Value, sp *spec, at document.Path) document.Problem {
	if sp.private { // such as an address: a number with quotes is no address either
		return document.Problem{Path: at, Message: mustBe(sp, v)}
	}
	return document.Problem{Path: at, Message: fmt.Sprintf("must be a string; without quotes it is %s", v.Kind), Hint: fmt.Sprintf("quote it: %q", v.Text)}
}

// mustBe returns the message that v must be another value.
func mustBe(sp *spec, v *document.Value) string {
	if sp.private && v.Kind == document.Text {
		return "must be " + sp.want
	}
	return fmt.Sprintf("must be %s, not %s", sp.want, display(sp, v))
}

// display returns v for a message. It does not show a value that may contain a secret.
func display(sp *spec, v *document.Value) string {
	switch {
	case !v.IsScalar(), sp.private:
		return v.Kind.String()
	case v.Kind != document.Text:
		return v.Text
	case !showable(v.Text):
		return "this value"
	}
	return fmt.Sprintf("%q", v.Text)
}

var plainText = regexp.MustCompile(`^[\w .,%/+-]{0,48}$`)

// showable reports whether s is short and certainly no address.
func showable(s string) bool { return plainText.MatchString(s) }

// explain returns the problem of the value at a path where CUE found a mistake.
func explain(root *spec, v *document.Value, at document.Path) document.Problem {
	sp := root.at(at)
	found, _ := v.Find(at, document.Position{})
	if found == nil {
		return missingValue(sp, at)
	}
	p := document.Problem{Path: at}
	var formatErr error
	if found.Kind == document.Text && len(at) > 0 && !sp.foreign {
		formatErr = checkFormat(at[len(at)-1], found.Text)
	}
	switch {
	case found.Kind == document.Map:
		p.Message, p.AtName = "must have "+sp.want+fieldNames(found), true
	case formatErr != nil:
		p.Message = formatErr.Error()
	default:
		p.Message = mustBe(sp, found)
		if sp.kind != document.Text && found.Kind == document.Text && unquoted.MatchString(found.Text) {
			p.Hint = "write it without quotes"
		}
	}
	return p
}

var unquoted = regexp.MustCompile(`^(true|false|[0-9]+)$`)

func missingValue(sp *spec, at document.Path) document.Problem {
	p := document.Problem{Path: at, Message: "is missing", Hint: "must be " + sp.want}
	if sp.missing != "" {
		p.Message = sp.missing
	}
	return p
}

func fieldNames(v *document.Value) string {
	names := make([]string, 0, len(v.Fields))
	for _, f := range v.Fields {
		names = append(names, f.Name)
	}
	if len(names) == 0 {
		return "; it has none"
	}
	return "; it has " + strings.Join(names, " and ")
}

// checkFormat returns the error of the package that parses the field. This error is more
// exact than the message of the schema.
func checkFormat(field, text string) error {
	switch field {
	case "checksum", "packedChecksum":
		_, err := ident.ParseDigest(text)
		return err
	case "uuid":
		return ident.CheckUUID(text)
	case "backingImage":
		return ident.CheckName(text)
	}
	return nil
}

var nodeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,252}$`)

// checkNodeName returns why a node or a disk cannot have that name.
func checkNodeName(name string) error {
	if nodeName.MatchString(name) {
		return nil
	}
	return fmt.Errorf("name %.60q: use letters, digits, \"_\", \".\" and \"-\", and begin with a letter or digit", name)
}

// explains reports whether a reported mistake is the cause of a problem at a path: the mistake is at the path or
// below it. A missing field beside an unknown field counts as reported, because the unknown field is probably misspelled.
func (s *structure) explains(at document.Path) bool {
	within := func(p document.Path) bool { return p.Within(at) }
	return slices.ContainsFunc(s.missing, within) || slices.ContainsFunc(s.problems, func(p document.Problem) bool { return within(p.Path) })
}

func knownFields(v *document.Value, sp *spec) int {
	n := 0
	for _, f := range v.Fields {
		if sp.fields[f.Name] != nil {
			n++
		}
	}
	return n
}
