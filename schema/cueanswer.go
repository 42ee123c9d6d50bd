package schema

import (
	"encoding/json"
	"slices"
	"strings"
)

// answer is what the evaluation of a unit came to, as the child writes it.
type answer struct {
	Document *wireValue `json:",omitempty"`
	Mistakes []mistake  `json:",omitempty"`
	// Passing: another try may end otherwise, so the answer is not kept.
	Passing bool `json:",omitempty"`
}

// mistake is an error of CUE in the user's own files.
type mistake struct {
	Path []string
	Position
	Message string
	Also    Position
	Hint    string
}

// wireValue is a value as it passes from the child.
type wireValue struct {
	Kind   kind
	Text   string      `json:",omitempty"`
	Fields []wireField `json:",omitempty"`
	Items  []wireValue `json:",omitempty"`
	Position
}

type wireField struct {
	Name string
	Position
	Value wireValue
}

func (w wireValue) value() *value {
	v := &value{kind: w.Kind, text: w.Text, pos: w.Position}
	if w.Kind == numberKind {
		v.number = jsonNumber(json.Number(w.Text))
	}
	for _, f := range w.Fields {
		v.fields = append(v.fields, field{name: f.Name, pos: f.Position, value: f.Value.value()})
	}
	for _, i := range w.Items {
		v.items = append(v.items, i.value())
	}
	return v
}

// content splits the answer into things, as that of any other file.
func (a answer) content(u *unit) *content {
	c := &content{origin: u.Origin}
	if a.Document != nil {
		c.document(a.Document.value())
	}
	for _, m := range a.Mistakes {
		c.mistake(m)
	}
	return c
}

// mistake puts an error of CUE to the thing that it is in, or else to the file.
func (c *content) mistake(m mistake) {
	p := Problem{Position: m.Position, Path: fieldPath(m.Path).String(), Message: m.Message, Also: m.Also, Hint: m.Hint}
	var s int
	if len(m.Path) > 1 {
		s = slices.Index(sectionNames[:], m.Path[0])
	}
	if len(m.Path) < 2 || s < 0 {
		c.problems = append(c.problems, p)
		return
	}
	k := key{section(s), m.Path[1]}
	for _, t := range c.things {
		if t.key == k {
			t.problems = append(t.problems, p)
			return
		}
	}
	c.ours = true
	c.things = append(c.things, &thing{key: k, origin: c.origin, pos: m.Position, value: &value{},
		verdict: &verdict{}, problems: []Problem{p}})
}

// unquote turns the labels of a CUE path into names.
func unquote(labels []string) []string {
	names := make([]string, 0, len(labels))
	for _, l := range labels {
		names = append(names, strings.Trim(l, `"`))
	}
	return names
}
