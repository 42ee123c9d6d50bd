package document

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// parts has texts with large mappings, and whether they can be parsed in parts.
var parts = map[string]struct {
	text    string
	inParts bool
}{
	"fields":                    {"images:\n  a: {b: c}\n  d: [e]\nnodes:\n  f:\n   g: 1\n  h: 2\n", true},
	"several documents":         {"images:\n  a: b\n  c: d\n---\nimages:\n  a: b\n...\n# end\n", true},
	"comments":                  {"images: # of the site\n\n# first\n  a: b # c\n    # d\n\n  e: f\n# g\n", true},
	"block scalars":             {"images:\n  a: |\n    b: c\n\n    d: e\n  f: >-\n   g\n  h: i\n", true},
	"scalars of several lines":  {"images:\n  a: b\n    c\n  d: 'e\n    f'\n  g: h", true},
	"a repeated field":          {"images:\n  a: b\n  a: c\nimages:\n  a: d\n", true},
	"quoted names":              {"images:\n  \"a\": b\n  'c': d\n", true},
	"an alias in its part":      {"images:\n  a: {b: &c d, e: *c}\n  f: g\n", true},
	"a merge below a part":      {"images:\n  a: {<<: {b: c}}\n  f: g\n", true},
	"no line break at the end":  {"images:\n  a: b\n  c:", true},
	"a missing value":           {"images:\n  a:\n  c:\n    - d\n", true},
	"a list in the column":      {"images:\n  a:\n  - b\n  c: d\n", true},
	"an alias of another part":  {"images:\n  a: &b c\n  d: *b\n", false},
	"an alias of the rest":      {"x: &b c\nimages:\n  d: *b\n", false},
	"a merge of a part":         {"images:\n  a: b\n  <<: {a: c, d: e}\n  d: f\n", false},
	"a name within quotes":      {"x: \"\nimages:\n  a: b\n  c: d\"\n", false},
	"fields within quotes":      {"images:\n  a: \"b\n  c: d\"\n", false},
	"fields within brackets":    {"images:\n  a: {b: c,\n  d: e}\n", false},
	"a name within brackets":    {"x: {\nimages:\n  a: b\n}\n", false},
	"a name in a block scalar":  {"x: |\n images:\n  a: b\n", false},
	"other line breaks":         {"images:\n  a: b\r...\n  c: d\n", false},
	"a list":                    {"images:\n  - a\n  - b\n", false},
	"a scalar":                  {"images:\n  a\n", false},
	"less indentation":          {"images:\n   a: b\n  c: d\n", false},
	"more indentation":          {"images:\n  a: b\n   c: d\n", false},
	"tabs":                      {"images:\n\ta: b\n", false},
	"a line without a name":     {"images:\n  a: b\n  c\n", false},
	"a list behind the mapping": {"images:\n  a: b\n- c\n", false},
	"too deep":                  {"images:\n  a: b\n  c: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n", false},
	"as deep as possible":       {"images:\n  a: b\n  c: " + strings.Repeat("[", 99) + strings.Repeat("]", 99) + "\n", true},
}

func TestPartsAreAsTheWhole(t *testing.T) {
	for name, c := range parts {
		t.Run(name, func(t *testing.T) {
			if inParts := compareParts(t, []byte(c.text), 1); inParts != c.inParts {
				t.Errorf("parsed in parts: %t, want %t", inParts, c.inParts)
			}
		})
	}
}

func FuzzYAMLParts(f *testing.F) {
	for _, c := range parts {
		f.Add([]byte(c.text), 1)
	}
	everything, err := os.ReadFile("../testdata/everything.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(everything, 1)
	f.Add(everything, 100)
	f.Fuzz(func(t *testing.T, text []byte, partSize int) { compareParts(t, text, partSize) })
}

// compareParts compares the values and the limits of a text that is parsed in parts with those of the whole
// text. It returns whether the text was parsed in parts.
func compareParts(t *testing.T, text []byte, partSize int) bool {
	limits := Limits{Aliased: 1000, Search: 1 << 20}
	partLimits := limits
	inParts, ok := parseInParts("a.yaml", text, &partLimits, partSize)
	if !ok {
		if partLimits != limits {
			t.Error("a text that was not parsed took from the limits")
		}
		return false
	}
	whole, problem := parseWhole("a.yaml", text, &limits)
	if problem != nil {
		t.Fatalf("parsed in parts, but the whole has an error: %v", problem)
	}
	if !reflect.DeepEqual(inParts, whole) {
		t.Errorf("in parts %s, the whole %s", describe(inParts), describe(whole))
	}
	if limits != partLimits {
		t.Errorf("limits in parts %v, of the whole %v", partLimits, limits)
	}
	return true
}

func describe(docs []*Value) string {
	var b strings.Builder
	for _, doc := range docs {
		doc.Leaves(nil, func(p Path, v *Value) { b.WriteString(p.String() + "=" + v.Text + " at " + v.Pos.String() + "; ") })
	}
	return b.String()
}
