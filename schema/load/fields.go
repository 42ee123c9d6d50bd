package load

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// decoder converts a definition to the types of package schema, and collects the problems that CUE cannot find.
type decoder struct {
	value    *document.Value // the definition
	problems []document.Problem
	loopback []document.Problem // see checked
}

// lacks reports whether the definition has no value at a path. A value with a mistake is not missing: its mistake is
// reported already.
func (d *decoder) lacks(path ...string) bool {
	v, _ := d.value.Find(path, document.Position{})
	return v == nil || v.Kind == document.Text && strings.TrimSpace(v.Text) == ""
}

// place is a place in a definition, at which its methods report problems.
type place struct {
	*decoder
	at document.Path
}

func (p place) report(message, hint string) {
	p.problems = append(p.problems, document.Problem{Path: p.at, Message: message, Hint: hint})
}

// reportError reports err if it is not nil.
func (p place) reportError(err error) {
	if err != nil {
		p.report(err.Error(), "")
	}
}

// of returns the place of a field.
func (p place) of(name string) place { return place{p.decoder, p.at.With(name)} }

// fields are the declared fields of a mapping without a mistake. All other fields have the defaults of the schema.
type fields struct {
	place
	spec   *spec
	values map[string]any
}

// value returns the value or default of a field. nil means that the field has neither.
func (f fields) value(name string) any {
	if v, declared := f.values[name]; declared {
		return v
	}
	return f.spec.field(name).fallback
}

func (f fields) flag(name string) bool {
	b, _ := f.value(name).(bool)
	return b
}

// text returns the string in a field, and "" if it is not declared.
func (f fields) text(name string) string {
	s, _ := f.value(name).(string)
	return s
}

// trimmed returns the string in a field without space around it.
func (f fields) trimmed(name string) string { return strings.TrimSpace(f.text(name)) }

// list returns the list of strings in a field.
func (f fields) list(name string) []string {
	list := []string{}
	items, _ := f.values[name].([]any)
	for _, item := range items {
		list = append(list, item.(string))
	}
	return list
}

// set returns the list of strings in a field, sorted, without duplicates and never nil. So their order in a file does not matter.
func (f fields) set(name string) []string {
	list := f.list(name)
	slices.Sort(list)
	return slices.Compact(list)
}

// in returns the fields of the mapping in a field, and false if the mapping is not declared.
func (f fields) in(name string) (fields, bool) {
	values, declared := f.values[name].(map[string]any)
	return fields{f.of(name), f.spec.field(name), values}, declared
}

// read converts the value of a field, and reports an error of the conversion. For a field without a value, it returns
// the zero value.
func read[T any](f fields, name string, convert func(any) (T, error)) (v T) {
	if f.value(name) == nil {
		return v
	}
	v, err := convert(f.value(name))
	f.of(name).reportError(err)
	return v
}

// readSet converts a list of strings to sorted values without duplicates.
func readSet[T interface {
	comparable
	fmt.Stringer
}](f fields, name string, parse func(string) (T, error)) []T {
	all := []T{}
	for i, text := range f.list(name) {
		v, err := parse(text)
		place{f.decoder, f.at.With(name).WithIndex(i)}.reportError(err)
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b T) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all)
}
