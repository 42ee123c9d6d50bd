package load

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

// definitionsOf returns the definitions of a file.
func definitionsOf(name string, data []byte) []*definition {
	searched := 0
	p := parse(configdir.File{Path: name, Data: data}, 0, &searched)
	all := p.native
	resolved := manifest.Resolve([]*manifest.File{&p.File}, func(string) bool { return false })[&p.File]
	for _, m := range slices.Concat(p.Definitions, p.References, resolved.Definitions, resolved.References) {
		all = append(all, fromManifest(name, m))
	}
	return all
}

// filesOfTests returns the YAML and JSON files of the test data and of the examples.
func filesOfTests(t testing.TB) (all []txtar.File) {
	for _, pattern := range []string{"testdata/*.yaml", "testdata/*/*.txtar", "../../examples/*/*.yaml"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %d files, error %v", pattern, len(names), err)
		}
		for _, name := range names {
			data, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			files := []txtar.File{{Name: name, Data: data}}
			if filepath.Ext(name) == ".txtar" {
				files = txtar.Parse(data).Files
			}
			all = append(all, files...)
		}
	}
	return slices.DeleteFunc(all, func(f txtar.File) bool { return filepath.Ext(f.Name) == ".cue" })
}

// Random changes of the definitions of the test data are either valid, or have problems whose messages are of this
// program and not of CUE.
func TestEveryMistakeHasAMessage(t *testing.T) {
	race.Skip(t)
	random := rand.New(rand.NewPCG(1, 2))
	var all []*definition
	for _, f := range filesOfTests(t) {
		all = append(all, definitionsOf(f.Name, f.Data)...)
	}
	var values []*document.Value
	names := []string{"", "x", "a1", "Ä", "path", "disk/1"}
	for _, d := range all {
		d.value.Leaves(nil, func(at document.Path, v *document.Value) {
			values, names = append(values, v), append(names, at...)
		})
	}
	values = append(values, unusualValues()...)
	c, valid, changed := &checker{}, 0, 0
	for i, d := range all {
		if i%100 == 0 {
			c = &checker{}
		}
		for range 4 {
			value := mutated(random, d.value, values, names)
			changed++
			if wantMessages(t, c.check(task{key: d.key, kind: d.kind, value: value}), d) {
				valid++
			}
		}
		if t.Failed() {
			return
		}
	}
	if valid < changed/20 || valid > changed*9/10 {
		t.Errorf("%d of %d changed definitions are valid", valid, changed)
	}
}

// wantMessages checks the result of a definition. It returns whether the definition is valid.
func wantMessages(t *testing.T, r checked, d *definition) bool {
	t.Helper()
	for _, p := range r.problems {
		if path := p.Path.String(); d.kind != nil && (path == "kind" || path == "apiVersion") {
			continue // a document with another value there is no such manifest
		}
		for _, words := range []string{"cannot be checked", "conflicting values", "incomplete value", "must be ,"} {
			if p.Message == "" || strings.Contains(p.Message, words) {
				t.Errorf("%s %q: the problem %q", d.section, d.name, p)
			}
		}
	}
	decoded := r.settings != nil || r.node != nil || r.image != nil
	valid := len(r.problems) == 0
	if valid && !decoded {
		t.Errorf("%s %q: %d problems, but decoded %t", d.section, d.name, len(r.problems), decoded)
	}
	return valid
}

// unusualValues returns values at the limits of what the schema accepts.
func unusualValues() (all []*document.Value) {
	for _, n := range []any{int64(0), int64(1), int64(-1), int64(1 << 62), 0.0, 1.0, 0.5, 1e300, nil} {
		all = append(all, &document.Value{Kind: document.Number, Text: "1", Number: n})
	}
	for _, s := range []string{"", " ", "0", "1", "true", "all", "none", "auto", "50%", "101%", "90s", "1.5Gi", "a\nb", "\xff", "/", "e\u0301", strings.Repeat("x", 300)} {
		all = append(all, &document.Value{Kind: document.Text, Text: s})
	}
	return append(all, &document.Value{}, &document.Value{Kind: document.List}, &document.Value{Kind: document.Map},
		&document.Value{Kind: document.Bool, Text: "true"}, &document.Value{Kind: document.Bool, Text: "false"},
		&document.Value{Kind: document.List, Items: slices.Repeat([]*document.Value{{Kind: document.Text, Text: "x"}}, maxElements+1)})
}

// mutated returns v with a change at a random place.
func mutated(random *rand.Rand, v *document.Value, values []*document.Value, names []string) *document.Value {
	changed := *v
	changed.Fields, changed.Items = slices.Clone(v.Fields), slices.Clone(v.Items)
	n := len(v.Fields) + len(v.Items)
	value, name := values[random.IntN(len(values))], names[random.IntN(len(names))]
	i := random.IntN(n + 2)
	switch deeper := random.IntN(3) > 0; {
	case i >= n && v.Kind == document.Map:
		changed.Fields = append(changed.Fields, document.Field{Name: name, Value: value})
	case i >= n && v.Kind == document.List:
		changed.Items = append(changed.Items, value)
	case i >= n:
		return value
	case i < len(v.Fields) && deeper:
		changed.Fields[i].Value = mutated(random, v.Fields[i].Value, values, names)
	case i < len(v.Fields) && random.IntN(2) > 0:
		changed.Fields[i].Name = name
	case i < len(v.Fields):
		changed.Fields = slices.Delete(changed.Fields, i, i+1)
	case deeper:
		changed.Items[i] = mutated(random, v.Items[i], values, names)
	default:
		changed.Items = slices.Delete(changed.Items, i, i+1)
	}
	return &changed
}
