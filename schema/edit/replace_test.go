package edit

import (
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

func TestReplaceRefuses(t *testing.T) {
	at := func(line, column int) document.Position { return document.Position{Line: line, Column: column} }
	for name, c := range map[string]struct {
		file, text string
		change     Change
	}{
		"alias":              {"a.yaml", "x: &a old\ny: *a\n", Change{at(2, 4), "old", "new"}},
		"anchor":             {"a.yaml", "x: &a old\ny: *a\n", Change{at(1, 4), "old", "new"}},
		"another value":      {"a.yaml", "x: older\n", Change{at(1, 4), "old", "new"}},
		"a longer value":     {"a.yaml", "x: old er\n", Change{at(1, 4), "old", "new"}},
		"of several lines":   {"a.yaml", "x: |\n  old\n  er\n", Change{at(1, 4), "old\ner\n", "new"}},
		"a number":           {"a.yaml", "x: old\n", Change{at(1, 4), "old", "12"}},
		"null":               {"a.yaml", "x: old\n", Change{at(1, 4), "old", "~"}},
		"a comment":          {"a.yaml", "x: [old]\n", Change{at(1, 5), "old", "a,b"}},
		"an alias":           {"a.yaml", "x: old\n", Change{at(1, 4), "old", "*b"}},
		"two lines":          {"a.yaml", "x: old\n", Change{at(1, 4), "old", "a\nb"}},
		"elsewhere":          {"a.yaml", "x: old\n", Change{at(7, 1), "old", "new"}},
		"after the line":     {"a.yaml", "x: old\ny: old\n", Change{at(1, 11), "old", "new"}},
		"no position":        {"a.yaml", "x: old\n", Change{at(0, 0), "old", "new"}},
		"a name":             {"a.json", `{"old": 1}`, Change{at(1, 2), "older", "new"}},
		"a name of a field":  {"a.json", `{"old": 1}`, Change{at(1, 2), "old", "new"}},
		"JSON number":        {"a.json", `{"x": 12}`, Change{at(1, 7), "12", "new"}},
		"CUE expression":     {"a.cue", "b: \"o\"\nx: b + \"ld\"\n", Change{at(2, 4), "old", "new"}},
		"CUE interpolation":  {"a.cue", "b: \"o\"\nx: \"\\(b)ld\"\n", Change{at(2, 4), "old", "new"}},
		"CUE reference":      {"a.cue", "b: \"old\"\nx: b\n", Change{at(2, 4), "old", "new"}},
		"CUE bytes":          {"a.cue", "x: 'old'\n", Change{at(1, 4), "old", "new"}},
		"invalid CUE":        {"a.cue", "x: {\n", Change{at(1, 4), "old", "new"}},
		"quote in CUE":       {"a.cue", "x: \"old\"\n", Change{at(1, 4), "old", `n"ew`}},
		"not closed":         {"a.yaml", "x: \"old\n", Change{at(1, 4), "old", "new"}},
		"quote at the end":   {"a.yaml", "x: 'old", Change{at(1, 4), "old", "new"}},
		"only an anchor":     {"a.yaml", "x: &a", Change{at(1, 4), "old", "new"}},
		"block at the end":   {"a.yaml", "x: |", Change{at(1, 4), "old", "new"}},
		"twice at one place": {"a.yaml", "x: 0\n", Change{at(1, 4), "old", "new"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Replace(c.file, []byte(c.text), []Change{c.change})
			if err == nil {
				t.Errorf("got %q", got)
			}
		})
	}
	twice := []Change{{at(1, 4), "old", "new"}, {at(1, 4), "old", "new"}}
	if got, err := Replace("a.yaml", []byte("x: old\n"), twice); err == nil {
		t.Errorf("got %q", got)
	}
}

func FuzzReplace(f *testing.F) {
	for _, text := range []string{"x: old\n", "x: 'old'", "{x: \"old\"}", "x: |\n  old\n", "- &a old\n- *a", "\ufeffx: old", "x:\r\n  - old\r\n"} {
		f.Add(uint8(0), text, 1, 4)
	}
	f.Add(uint8(1), `{"x": "old"}`, 1, 7)
	f.Add(uint8(2), `x: #"old"#`, 1, 4)
	f.Fuzz(func(t *testing.T, language uint8, text string, line, column int) {
		file := []string{"a.yaml", "a.json", "a.cue"}[language%3]
		if line > 1000 || column > 1000 {
			return
		}
		got, err := Replace(file, []byte(text), []Change{{document.Position{Line: line, Column: column}, "old", "new"}})
		if err != nil {
			return
		}
		if strings.Count(string(got), "new") <= strings.Count(text, "new") {
			t.Errorf("%q became %q", text, got)
		}
	})
}
