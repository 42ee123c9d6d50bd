package load

import (
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"sigs.k8s.io/yaml"
)

// TestEveryFieldIsDocumented: docs/configuration.md is made from the comments and attributes
// of schema.cue. Each field has a comment, a description of its value, and an example that
// is valid.
func TestEveryFieldIsDocumented(t *testing.T) {
	context := cuecontext.New()
	root := context.CompileBytes(schemaCUE, cue.Filename("schema.cue"))
	definitions, err := root.Fields(cue.Definitions(true))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for definitions.Next() {
		v, _ := withoutCount(definitions.Value())
		if v.IncompleteKind() != cue.StructKind {
			continue
		}
		fields, err := v.Fields(cue.Optional(true), cue.Patterns(false))
		if err != nil {
			t.Fatal(err)
		}
		for fields.Next() {
			name := definitions.Selector().String() + "." + fields.Selector().Unquoted()
			checkField(t, context, name, fields.Value())
			checked++
		}
	}
	if checked < 50 {
		t.Errorf("found %d fields only", checked)
	}
}

func checkField(t *testing.T, context *cue.Context, name string, v cue.Value) {
	t.Helper()
	var comment string
	for _, group := range v.Doc() {
		comment += group.Text()
	}
	if !strings.HasSuffix(strings.TrimSpace(comment), ".") {
		t.Errorf("%s: the comment %q is no sentence", name, comment)
	}
	want := v.Attribute("want")
	plain, _ := withoutCount(v)
	if text, err := want.String(0); (err != nil || text == "") && plain.IncompleteKind() != cue.StructKind {
		t.Errorf("%s has no @want", name)
	}
	example, err := exampleOf(v)
	if err != nil && !hasElements(v) {
		t.Errorf("%s has no @example", name)
	}
	if err != nil {
		return
	}
	value, err := yaml.YAMLToJSON([]byte(example))
	if err != nil {
		t.Errorf("%s: example %s: %v", name, example, err)
	}
	if err := v.Unify(context.CompileBytes(value)).Validate(cue.Concrete(true), cue.Final()); err != nil {
		t.Errorf("%s: example %s: %v", name, example, err)
	}
}

func exampleOf(v cue.Value) (string, error) {
	a := v.Attribute("example")
	return a.String(0)
}

// hasElements reports whether v is a mapping with any names. CUE gives the attribute of such
// a field to its elements.
func hasElements(v cue.Value) bool {
	fields, err := v.Fields(cue.Optional(true), cue.Patterns(true))
	if err != nil {
		return false
	}
	for fields.Next() {
		if fields.Selector().ConstraintType() == cue.PatternConstraint {
			return true
		}
	}
	return false
}
