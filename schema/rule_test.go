package schema

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

// wantSameAsCUE checks that CUE accepts the definition if its rule does, and with the same result. It
// returns whether the rule accepts it.
func wantSameAsCUE(t *testing.T, c *checker, d *definition) (accepted bool) {
	t.Helper()
	if d.kind != nil {
		sp, v := c.specs.manifests[d.kind], manifest.Own(d.value)
		accepted = sp.rule.accept(v, reflect.Value{})
		if problems, _ := c.evaluateManifest(sp, d.kind, v); accepted && len(problems) > 0 {
			t.Errorf("%s: the rule accepts what CUE rejects: %v", d.kind.Name, problems)
		}
		return accepted
	}
	sp, raw, task := c.specs.sections[d.section], newRaw(d.section), task{key: d.key, value: d.value}
	if !sp.rule.accept(d.value, reflect.ValueOf(raw).Elem()) {
		return false
	}
	if got, want := decode(task, raw), c.evaluateNative(sp, task); !reflect.DeepEqual(got, want) {
		t.Errorf("%s %q: the result of the rule is\n%+v, %+v, %+v %v, and of CUE\n%+v, %+v, %+v %v", d.section, d.name,
			got.settings, got.node, got.image, got.problems, want.settings, want.node, want.image, want.problems)
	}
	return true
}

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
	for _, pattern := range []string{"testdata/*.yaml", "testdata/*/*.txtar", "../examples/*/*.yaml"} {
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

// The compiler knows all constructs of the schema.
func TestRulesCoverTheSchema(t *testing.T) {
	all := readSpecs()
	for s, sp := range all.sections {
		wantNoGap(t, section(s).String(), sp.rule)
	}
	for k, sp := range all.manifests {
		wantNoGap(t, k.Name, sp.rule)
	}
}

func wantNoGap(t *testing.T, path string, r *rule) {
	if r == nil {
		t.Errorf("%s has no rule", path)
		return
	}
	if r.elements != nil {
		wantNoGap(t, path+"[]", r.elements)
	}
	for name, i := range r.index {
		wantNoGap(t, path+"."+name, r.fields[i].rule)
	}
}

// unusualManifest has a name that CUE accepts, and structure does not.
const unusualManifest = `
apiVersion: longhorn.io/v1beta2
kind: BackingImage
metadata: {name: parrot}
spec: {sourceType: upload, diskFileSpecMap: {a b: {evictionRequested: true}}}
`

// The definitions of the test data, and what random changes make of them, have the same result with and
// without rules.
func TestRulesEqualCUE(t *testing.T) {
	race.Skip(t)
	random := rand.New(rand.NewPCG(1, 2))
	c := &checker{specs: readSpecs()}
	var all []*definition
	for _, f := range filesOfTests(t) {
		all = append(all, definitionsOf(f.Name, f.Data)...)
	}
	all = append(all, definitionsOf("a.yaml", []byte(unusualManifest))...)
	var values []*document.Value
	names := []string{"", "x", "a1", "Ä", "path", "disk/1"}
	for _, d := range all {
		d.value.Leaves(nil, func(at document.Path, v *document.Value) {
			values, names = append(values, v), append(names, at...)
		})
	}
	values = append(values, unusualValues()...)
	accepted, changed := 0, 0
	for _, d := range all {
		wantSameAsCUE(t, c, d)
		for range 10 {
			mutant := *d
			mutant.value = mutated(random, d.value, values, names)
			changed++
			if wantSameAsCUE(t, c, &mutant) {
				accepted++
			}
		}
		if t.Failed() {
			return
		}
	}
	if accepted < changed/10 || accepted > changed*9/10 {
		t.Errorf("the rules accept %d of %d changed definitions", accepted, changed)
	}
	t.Logf("the rules accept %d of %d changed definitions", accepted, changed)
}

// unusualValues returns values at the limits of what the rules accept.
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

// FuzzRules compares the rules with CUE.
func FuzzRules(f *testing.F) {
	every := 4
	if race.Enabled {
		every = 40
	}
	for i, file := range filesOfTests(f) {
		if i%every == 0 {
			f.Add(file.Data)
		}
	}
	f.Add([]byte("settings: {cleanupWaitInterval: 0.5, pruneLimit: 3, scrubInterval: 0}\nnodes: {n1: {disks: {d1: {path: /d1}}}}\n"))
	c := &checker{specs: readSpecs()}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 10_000 {
			return
		}
		for _, d := range definitionsOf("a.yaml", data) {
			wantSameAsCUE(t, c, d)
		}
	})
}

// Constructs that the compiler knows have a rule. Others, with which the schema would mean something
// else, have none, or one that accepts less than CUE.
func TestRuleAcceptsNothingThatCUERejects(t *testing.T) {
	var values []*document.Value
	for _, text := range []string{"1", "2", "-1", "x", "true", "[]", "[1]", "[x]", "{}", "{a: 1}", "{a: 2}", "{a: x}", "{b: 1}", "{a: 1, b: 1}", "{a: 1, b: x}", "{a: {b: 1}}", "{a: [1]}", "{a: null}", "{a: x, string: 1}"} {
		v, p := document.ParseYAML("a.yaml", []byte(text), &document.Limits{})
		if p != nil {
			t.Fatal(p)
		}
		values = append(values, v...)
	}
	values = append(values, &document.Value{Kind: document.Text, Text: "\xff"}) // CUE would replace it
	for _, c := range []struct {
		text  string
		known bool
	}{
		{"#A: int", true},
		{"#A: {a: int}", true},
		{"#A: {a?: int | *1, b!: #B}, #B: =~\"x\" | 1", true},
		{"#A: {[=~\"a\"]: int}", true},
		{"#A: {a?: {b: *2 | int, ...}}", true},
		{"#A: {a: [...int]}", true},
		{"#A: {a?: _}", true},
		{"#A: {a!: [...int]}", true},
		{"#A: string", true},
		{"import \"struct\"\n#A: struct.MinFields(1) & {a?: int, b?: int}", true},
		{"import \"struct\"\n#A: struct.MinFields(1) & {a: *1 | int, b?: int}", false},
		{"import \"struct\"\n#A: struct.MinFields(1) & {a?: int, ...}", false},
		{"import struct \"list\"\n#A: struct.MaxItems(1) & {a?: int}", false},
		{"#A: {a: int, if a > 1 {b: int}}", false},
		{"#A: {a: int, #B}, #B: {b: int}", false},
		{"#A: {a: int} & {b: int}", false},
		{"#A: {a: int} | {b: int}", false},
		{"#A: {let x = 1, a: x}", false},
		{"#A: {a: int, [string]: 1}", false},
		{"#A: {[=~\"a\"]: 1, [=~\"b\"]: int}", false},
		{"#A: {a: int, ...}, #A: {b: 1, ...}", false},
		{"#A: {a?: int}, if true {#A: {a?: 1}}", false},
		{"#A: {a?: #A}", true},
		{"#A: {a: int, a: 1}", false},
		{"#A: <2", false},
		{"#A: (*1 | int) & >=2", false},
		{"#A: {a?: string, string: 1}", false},
		{"#A: {#B: 1, a?: #B}, #B: int", false},
		{"#A: [int]", false},
		{"#A: [...]", false},
		{"#A: float", false},
		{"#A: -1", false},
	} {
		compiler := newRuleCompiler([]byte(c.text))
		r := compiler.definition("#A", nil)
		context := cuecontext.New()
		definition := context.CompileString(c.text).LookupPath(cue.ParsePath("#A"))
		accepted := 0
		for _, v := range values {
			if !r.accept(v, reflect.Value{}) {
				continue
			}
			accepted++
			if err := definition.Unify(context.Encode(plainOf(v))).Validate(cue.Concrete(true), cue.Final()); err != nil || !utf8.ValidString(v.Text) {
				t.Errorf("%s: the rule accepts %+v: %v", c.text, v, err)
			}
		}
		if c.known && accepted == 0 || !c.known && accepted > 0 {
			t.Errorf("%s: the rule accepts %d values", c.text, accepted)
		}
	}
}

// plainOf returns a value for CUE.
func plainOf(v *document.Value) any {
	switch v.Kind {
	case document.Map:
		fields := map[string]any{}
		for _, f := range v.Fields {
			fields[f.Name] = plainOf(f.Value)
		}
		return fields
	case document.List:
		items := []any{}
		for _, item := range v.Items {
			items = append(items, plainOf(item))
		}
		return items
	}
	return plainScalar(v)
}
