package sandbox

import (
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

func TestMain(m *testing.M) {
	ChildMain()
	m.Run()
}

func evaluate(t *testing.T, text string) Result {
	t.Helper()
	return Evaluate(t.Context(), Units([]configdir.File{{Path: "a.cue", Data: []byte(text)}}))[0]
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
	results := Evaluate(t.Context(), Units([]configdir.File{
		{Path: "a.cue", Data: []byte("a: 1\n")}, {Path: "b.cue", Data: []byte(bomb)}, {Path: "c.cue", Data: []byte("c: 1\n")},
	}))
	if len(results) != 3 || len(results[0].Problems)+len(results[2].Problems) > 0 {
		t.Fatalf("got %+v, want results for the files around the bomb", results)
	}
	b := results[1]
	if len(b.Problems) != 1 || b.Problems[0].File != "b.cue" || !strings.Contains(b.Problems[0].Message, "takes more than") || b.Transient {
		t.Errorf("got %+v, want a lasting problem of b.cue that names the limit", b)
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
	for _, u := range Units([]configdir.File{
		file("a.cue", "package x\n"), file("b.cue", "package x\nimport \"strings\"\n"), file("c.cue", "package y\n"), file("d.cue", "1"),
		file("cue.mod/pkg/e.cue", "package x\n"), file("f.yaml", ""), file("sub/g.cue", "package x\n"),
	}) {
		text := u.Origin + ":"
		for _, f := range u.Files {
			text += " " + f.Path
		}
		for _, f := range u.Imports {
			text += " +" + f.Path
		}
		got = append(got, text)
	}
	const want = "./.:x: a.cue b.cue +c.cue +d.cue +cue.mod/pkg/e.cue +f.yaml +sub/g.cue; ./.:y: c.cue; d.cue: d.cue; ./sub:x: sub/g.cue"
	if text := strings.Join(got, "; "); text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}
