package edit

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var generated = flag.Int("edit.files", 10_000, "number of generated YAML files")

// generator writes files twice: with the old values, and with the new ones. So what Replace must return does not come from
// Replace.
type generator struct {
	*rand.Rand
	old, edited strings.Builder
}

func (g *generator) both(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	g.old.WriteString(text)
	g.edited.WriteString(text)
}

func (g *generator) oneOf(texts ...string) string { return texts[g.IntN(len(texts))] }

func (g *generator) digits() string {
	var b strings.Builder
	for range 8 {
		fmt.Fprintf(&b, "%016x", g.Uint64())
	}
	return b.String()
}

// scalar writes a value in a style of YAML. flow is true within braces, where a block cannot be.
func (g *generator) scalar(indent, eol string, flow bool, old, edited string) {
	style := g.IntN(5)
	if flow {
		style = g.IntN(3)
	}
	write := func(before, after string) {
		g.old.WriteString(before + old + after)
		g.edited.WriteString(before + edited + after)
	}
	switch style {
	case 0:
		write("", "")
	case 1:
		write("'", "'")
	case 2:
		write(`"`, `"`)
	case 3:
		write(g.oneOf("|", ">", "|-", ">+", "| # a block")+eol+indent+"    ", "")
	case 4:
		write(g.oneOf("&a", "!!str ", "&b !!str ")+" ", "")
	}
}

func (g *generator) address() string {
	return fmt.Sprintf("https://example.com/%s/a-%d.qcow2%s", g.oneOf("images", "a,b", "it's", "ü", "x#y", "%20"), g.IntN(1e6), g.oneOf("", "?a=b&c=d", "#f"))
}

func (g *generator) yaml() {
	eol := g.oneOf("\n", "\n", "\r\n")
	g.both("%s", g.oneOf("", "\ufeff", "# äöü 日本"+eol, "---"+eol, "%YAML 1.1"+eol+"---"+eol))
	for document := range 1 + g.IntN(2) {
		if document > 0 {
			g.both("---%s", eol)
		}
		unit := strings.Repeat(" ", 2+g.IntN(3))
		g.both("images:%s%s", g.oneOf("", "  # c: d"), eol)
		for i := range 1 + g.IntN(4) {
			g.image(unit, eol, fmt.Sprintf("image-%d-%d", document, i))
		}
		g.both("%s", g.oneOf("", "settings: {minNumberOfCopies: 2}"+eol, eol+eol, "# end"+eol))
	}
}

func (g *generator) image(unit, eol, name string) {
	oldURL, url, oldSum, sum := g.address(), g.address(), g.digits(), g.digits()
	prefix := g.oneOf("", "sha512:")
	if g.IntN(3) == 0 { // in one line
		oldURL, url = strings.NewReplacer(",", "", "#", "", "?", "").Replace(oldURL), strings.NewReplacer(",", "", "#", "", "?", "").Replace(url)
		g.both("%s%s: {source: {download: {url: ", unit, name)
		g.scalar("", eol, true, oldURL, url)
		g.both("}}, %schecksum: ", g.oneOf("", `"ünï": "x", `, "nodeSelector: [a, b], "))
		g.scalar("", eol, true, "sha512:"+oldSum, "sha512:"+sum)
		g.both("}%s%s", g.oneOf("", " # äöü"), eol)
		return
	}
	checksum := func() {
		g.both("%schecksum: ", unit+unit)
		g.scalar(unit+unit, eol, false, prefix+oldSum, prefix+sum)
		g.both("%s", eol)
	}
	g.both("%s%s:%s%s", unit, name, g.oneOf("", " # an image"), eol)
	first := g.IntN(2) == 0
	if first {
		checksum()
	}
	g.both("%ssource:%s%sdownload:%s%s", unit+unit, eol, strings.Repeat(unit, 3), eol, g.oneOf("", eol, unit+"# url: no"+eol))
	g.both("%surl:%s", strings.Repeat(unit, 4), g.oneOf(" ", "   "))
	g.scalar(strings.Repeat(unit, 4), eol, false, oldURL, url)
	g.both("%s", eol)
	if !first {
		checksum()
	}
	g.both("%s", g.oneOf("", unit+unit+"minNumberOfCopies: all"+eol, eol))
}

// changesIn returns the changes that turn the values of one parsed file into those of another.
func changesIn(t *testing.T, before, after []*document.Value) (changes []Change) {
	t.Helper()
	for i := range before {
		var texts []string
		after[i].Leaves(nil, func(_ document.Path, v *document.Value) { texts = append(texts, v.Text) })
		before[i].Leaves(nil, func(_ document.Path, v *document.Value) {
			if v.Text != texts[0] {
				changes = append(changes, Change{Position: v.Pos, Old: v.Text, New: strings.TrimSpace(texts[0])})
			}
			texts = texts[1:]
		})
	}
	return changes
}

func TestOnlyTheValuesChangeInYAML(t *testing.T) {
	valid, seed := 0, 0
	if testing.Short() {
		*generated = min(*generated, 500)
	}
	for ; valid < *generated && seed < 2**generated; seed++ {
		g := generator{Rand: rand.New(rand.NewPCG(uint64(seed), 18))}
		g.yaml()
		before, err := parse("a.yaml", []byte(strings.TrimPrefix(g.old.String(), "\ufeff")))
		after, err2 := parse("a.yaml", []byte(strings.TrimPrefix(g.edited.String(), "\ufeff")))
		if err != nil || err2 != nil {
			continue // a plain text that cannot be one
		}
		valid++
		changes := changesIn(t, before, after)
		got, err := Replace("a.yaml", []byte(g.old.String()), changes)
		if err != nil || string(got) != g.edited.String() {
			t.Fatalf("seed %d: %v\n%s\nbecame\n%s", seed, err, g.old.String(), got)
		}
		if lines := differentLines(g.old.String(), string(got)); lines > len(changes) {
			t.Fatalf("seed %d: %d changes in %d lines", seed, len(changes), lines)
		}
	}
	if valid < *generated {
		t.Errorf("only %d of %d files are valid", valid, seed)
	}
}

func differentLines(a, b string) (n int) {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range x {
		if i >= len(y) || x[i] != y[i] {
			n++
		}
	}
	return n
}

func TestOnlyTheValuesChangeInJSON(t *testing.T) {
	for seed := range 2000 {
		g := generator{Rand: rand.New(rand.NewPCG(uint64(seed), 18))}
		space := func() string { return g.oneOf("", " ", "\n", "\r\n\t", "  ") }
		g.both("%s{%s\"images\":{", space(), space())
		for i := range 1 + g.IntN(5) {
			if i > 0 {
				g.both(",")
			}
			g.both("%s\"ü-%d\"%s:%s{\"url\":%s\"", space(), i, space(), space(), space())
			g.old.WriteString(strings.ReplaceAll(g.address(), "/", g.oneOf("/", `\/`, `\u002f`)))
			g.edited.WriteString(g.address())
			g.both("\",%s\"checksum\"%s: \"", space(), space())
			g.old.WriteString(g.digits())
			g.edited.WriteString(g.digits())
			g.both("\"%s}", space())
		}
		g.both("}}%s", space())
		before, err := parse("a.json", []byte(g.old.String()))
		after, err2 := parse("a.json", []byte(g.edited.String()))
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		got, err := Replace("a.json", []byte(g.old.String()), changesIn(t, before, after))
		if err != nil || string(got) != g.edited.String() {
			t.Fatalf("seed %d: %v\n%s\nbecame\n%s", seed, err, g.old.String(), got)
		}
	}
}

func TestOnlyTheValuesChangeInCUE(t *testing.T) {
	for seed := range 2000 {
		g := generator{Rand: rand.New(rand.NewPCG(uint64(seed), 18))}
		g.both("// ä\npackage a\n\n")
		for i := range 1 + g.IntN(5) {
			for _, field := range []string{"url", "checksum"} {
				g.both("images: \"ü-%d\": %s:%s", i, field, g.oneOf(" ", "\t", "   "))
				before, after := g.oneOf("\"\n", "#\"\n", "\"\"\"\n", "##\"\n", "\" // c\n"), ""
				switch mark := strings.TrimRight(before, " /c\n"); mark {
				case `"""`:
					before, after = "\"\"\"\n\t\t", "\n\t\t\"\"\"\n"
				default:
					after = strings.Replace(before, mark, `"`+strings.Trim(mark, `"`), 1)
					before = mark
				}
				g.both("%s", before)
				g.old.WriteString(g.address())
				g.edited.WriteString(g.address())
				g.both("%s", after)
			}
		}
		got, err := Replace("a.cue", []byte(g.old.String()), cueChanges(t, g.old.String(), g.edited.String()))
		if err != nil || string(got) != g.edited.String() {
			t.Fatalf("seed %d: %v\n%s\nbecame\n%s", seed, err, g.old.String(), got)
		}
	}
}

// cueChanges evaluates two files and returns the changes from one to the other.
func cueChanges(t *testing.T, before, after string) (changes []Change) {
	t.Helper()
	texts := map[string]string{}
	ctx := cuecontext.New()
	walk := func(text string, do func(v cue.Value, s string)) {
		v := ctx.CompileString(text, cue.Filename("a.cue"))
		if v.Err() != nil {
			t.Fatalf("%v\n%s", v.Err(), text)
		}
		v.Walk(nil, func(v cue.Value) {
			if s, err := v.String(); err == nil {
				do(v, s)
			}
		})
	}
	walk(after, func(v cue.Value, s string) { texts[v.Path().String()] = s })
	walk(before, func(v cue.Value, s string) {
		if edited := texts[v.Path().String()]; edited != s {
			at := document.Position{File: "a.cue", Line: v.Pos().Line(), Column: v.Pos().Column()}
			changes = append(changes, Change{Position: at, Old: s, New: strings.TrimSpace(edited)})
		}
	})
	return changes
}

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
