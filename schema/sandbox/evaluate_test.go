package sandbox

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

func TestMain(m *testing.M) {
	ChildMain()
	m.Run()
}

const (
	manyValues = 100_000
	maxText    = 1000
)

func evaluate(t *testing.T, text string) Result {
	t.Helper()
	return evaluateAll(t, manyValues, configdir.File{Path: "a.cue", Data: []byte(text)})[0]
}

func evaluateAll(t *testing.T, maxValues int, files ...configdir.File) (results []Result) {
	t.Helper()
	d := NewDirectory(files)
	Evaluate(t.Context(), d.Files, d.Units, Limits{maxValues, maxText, time.Minute}, func(i int, r Result) {
		if i != len(results) {
			t.Errorf("the result %d comes after %d others", i, len(results))
		}
		results = append(results, r)
	})
	return results
}

func TestEvaluateKeepsValuesAndPositions(t *testing.T) {
	r := evaluate(t, "a: 12345678901234567\nb: 1.5\nc: [\"x\", true, null]\n\"d.e\": f: {}\n")
	if len(r.Problems) > 0 || r.Document == nil {
		t.Fatalf("got problems %v, document %v", r.Problems, r.Document)
	}
	for _, want := range []struct {
		path   document.Path
		kind   document.Kind
		text   string
		number any
		line   int
	}{
		{document.Path{"a"}, document.Number, "12345678901234567", int64(12345678901234567), 1},
		{document.Path{"b"}, document.Number, "1.5", 1.5, 2},
		{document.Path{"c", "[0]"}, document.Text, "x", nil, 3},
		{document.Path{"c", "[1]"}, document.Bool, "true", nil, 3},
		{document.Path{"c", "[2]"}, document.Null, "", nil, 3},
		{document.Path{"d.e", "f"}, document.Map, "", nil, 4},
	} {
		v, _ := r.Document.Find(want.path, document.Position{})
		if v == nil || v.Kind != want.kind || v.Text != want.text || v.Number != want.number || v.Pos.Line != want.line {
			t.Errorf("%s: got %+v, want %+v", want.path, v, want)
		}
	}
}

func TestEvaluateKeepsTheElementsOfPaths(t *testing.T) {
	r := evaluate(t, "images: \"a.b\": source: 1 & 2\n")
	if len(r.Problems) != 1 || len(r.Problems[0].Path) != 3 || r.Problems[0].Path[1] != "a.b" || r.Problems[0].Line != 1 {
		t.Errorf("got %+v, want one problem of images, a.b, source in line 1", r.Problems)
	}
}

func TestEvaluateGoesOnAfterACrash(t *testing.T) {
	const bomb = "let n = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]\nx: [for a in n for b in n for c in n for d in n for e in n for f in n for g in n for h in n if a+b+c+d+e+f+g+h > 100 {a}]\n"
	results := evaluateAll(t, manyValues, configdir.File{Path: "a.cue", Data: []byte("a: 1\n")},
		configdir.File{Path: "b.cue", Data: []byte(bomb)}, configdir.File{Path: "c.cue", Data: []byte("c: 1\n")})
	if len(results) != 3 || len(results[0].Problems)+len(results[2].Problems) > 0 {
		t.Fatalf("got %+v, want results for the files around the bomb", results)
	}
	b := results[1]
	if len(b.Problems) != 1 || b.Problems[0].File != "b.cue" || !strings.Contains(b.Problems[0].Message, "takes more than") || b.Transient {
		t.Errorf("got %+v, want a lasting problem of b.cue that names the limit", b)
	}
}

func TestEvaluateLimitsValues(t *testing.T) {
	for text, want := range map[string]int{"a: [1, 2]\nb: 1\n": 7, "a: [1, 2, 3]\nb: 1\n": 0} {
		r := evaluateAll(t, 7, configdir.File{Path: "a.cue", Data: []byte(text)})[0]
		if r.Values != want || (r.Document == nil) != (want == 0) {
			t.Errorf("%q: %d values, %v, want %d", text, r.Values, r.Problems, want)
		}
		if want == 0 && (len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Message, "more than 7 values")) {
			t.Errorf("%q: %v, want one problem with the limit", text, r.Problems)
		}
	}
}

// A few lines of CUE can repeat a text: in a value, in a name, and in messages that quote it.
func TestEvaluateLimitsText(t *testing.T) {
	const long = "import \"strings\"\nx: strings.Repeat(\"x\", %d)\n"
	for text, tooMuch := range map[string]bool{
		fmt.Sprintf(long, maxText-1):                             false,
		fmt.Sprintf(long, maxText):                               true,
		fmt.Sprintf(long, maxText) + "(x): 1\n":                  true,
		fmt.Sprintf(long, maxText) + "y: [for _ in x[:3] {x}]\n": true,
	} {
		r := evaluate(t, text)
		if got := len(r.Problems) == 1 && strings.Contains(r.Problems[0].Message, "more than 1000 bytes of text"); got != tooMuch || tooMuch && r.Document != nil {
			t.Errorf("%q: %.200v, want too much text: %t", text, r.Problems, tooMuch)
		}
	}
	r := evaluate(t, fmt.Sprintf(long, 100*maxText)+"x: \"y\"\n")
	if len(r.Problems) != 1 || r.Text > maxText || len(r.Problems[0].Message) > maxMessage+len("…") || r.Problems[0].Line != 2 {
		t.Errorf("got %.2000v, want a short message of the conflict", r.Problems)
	}
}

// When the time is over, the units that are left may be evaluated later.
func TestEvaluateEndsWithItsTime(t *testing.T) {
	var results []Result
	d := NewDirectory([]configdir.File{{Path: "a.cue", Data: []byte("a: 1\n")}, {Path: "b.cue", Data: []byte("b: 1\n")}})
	Evaluate(t.Context(), d.Files, d.Units, Limits{manyValues, maxText, 0}, func(_ int, r Result) { results = append(results, r) })
	if len(results) != 2 || !results[0].Transient || !results[1].Transient || results[1].Problems[0].File != "b.cue" {
		t.Errorf("got %+v, want a transient problem of each unit", results)
	}
}

// The .cue files are evaluated again only if a file changes that one of them may read.
func TestSumCoversWhatCUEReads(t *testing.T) {
	a, b := configdir.File{Path: "a.cue", Data: []byte("a: 1\n")}, configdir.File{Path: "b.yaml", Data: []byte("b: 1\n")}
	embeds := configdir.File{Path: "c.cue", Data: []byte("@extern(embed)\nc: 1\n")}
	changed := func(f configdir.File) configdir.File {
		f.Data = append(slices.Clone(f.Data), '\n')
		return f
	}
	for _, c := range []struct {
		before, after []configdir.File
		equal         bool
	}{
		{[]configdir.File{a, b}, []configdir.File{a, changed(b)}, true},
		{[]configdir.File{a, b}, []configdir.File{changed(a), b}, false},
		{[]configdir.File{a, b, embeds}, []configdir.File{a, changed(b), embeds}, false},
		{[]configdir.File{a, b}, []configdir.File{a, b, embeds}, false},
	} {
		if equal := NewDirectory(c.before).Sum == NewDirectory(c.after).Sum; equal != c.equal {
			t.Errorf("%v and %v: equal sums %t, want %t", c.before, c.after, equal, c.equal)
		}
	}
}

func TestChildNeedsChildMain(t *testing.T) {
	t.Setenv(childVariable, "1")
	if r := evaluate(t, "a: 1\n"); len(r.Problems) != 1 || !r.Transient {
		t.Errorf("a child started a child: %+v", r)
	}
}

func TestUnits(t *testing.T) {
	file := func(path, text string) configdir.File { return configdir.File{Path: path, Data: []byte(text)} }
	var got []string
	for _, u := range NewDirectory([]configdir.File{
		file("a.cue", "package x\n"), file("b.cue", "package x\n"), file("c.cue", "package y\n"), file("d.cue", "1"),
		file("cue.mod/pkg/e.cue", "package x\n"), file("f.yaml", ""), file("sub/g.cue", "package x\n"),
	}).Units {
		text := u.Origin + ":"
		for _, f := range u.Files {
			text += " " + f.Path
		}
		got = append(got, text)
	}
	const want = "./.:x: a.cue b.cue; ./.:y: c.cue; d.cue: d.cue; ./sub:x: sub/g.cue"
	if text := strings.Join(got, "; "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}
