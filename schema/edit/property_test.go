package edit

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

var (
	generated = flag.Int("edit.files", 300, "number of generated YAML files; there are a fifth as many in JSON, and a tenth in CUE")
	firstSeed = flag.Uint64("edit.seed", 0, "seed of the first generated file")
)

// TestOnlyTheValuesChange edits generated files. Each is valid, and has some images with new values, some without, and
// some that cannot be edited. All other bytes stay, and at most three lines change for an image. A second edit changes
// nothing.
func TestOnlyTheValuesChange(t *testing.T) {
	for _, language := range []struct {
		ext      string
		files    int
		generate func(*generator)
	}{
		{"yaml", *generated, (*generator).yaml},
		{"json", *generated / 5, (*generator).json},
		{"cue", *generated / 10, (*generator).cue},
	} {
		t.Run(language.ext, func(t *testing.T) {
			files, edited, refused := 0, 0, 0
			for files < language.files {
				var batch []*generator // files of one directory
				for range min(50, language.files-files) {
					g := newGenerator(*firstSeed+uint64(files), fmt.Sprintf("i%d", files))
					language.generate(g)
					batch = append(batch, g)
					edited, refused = edited+len(g.wanted)-len(g.refused), refused+len(g.refused)
					files++
				}
				editGenerated(t, language.ext, batch)
			}
			t.Logf("%d images edited and %d refused in %d files", edited, refused, files)
			if edited < files || refused == 0 && language.ext != "json" {
				t.Errorf("only %d images edited and %d refused in %d files", edited, refused, files)
			}
		})
	}
}

func editGenerated(t *testing.T, ext string, batch []*generator) {
	t.Helper()
	var s configdir.Snapshot
	byPath, wanted := map[string]*generator{}, map[string]Values{}
	for _, g := range batch {
		f := configdir.File{Path: g.prefix + "." + ext, Data: []byte(g.old.String())}
		s.Files, byPath[f.Path] = append(s.Files, f), g
		maps.Copy(wanted, g.wanted)
	}
	before := load.NewLoader().Load(t.Context(), s)
	if len(before.Errors) > 0 {
		t.Fatalf("%v in\n%s", before.Errors[0], byPath[before.Errors[0].File].old.String())
	}
	first, err := Edit(t.Context(), s, before, wanted)
	if err != nil {
		t.Fatal(err)
	}
	for name := range wanted {
		g := batch[slices.IndexFunc(batch, func(g *generator) bool { return g.wanted[name].URL != "" })]
		if refusal := first.Refused[name]; (refusal != nil) != g.refused[name] {
			t.Fatalf("%s: refused: %v, want %t, in\n%s", name, refusal, g.refused[name], g.old.String())
		}
		if refusal := first.Refused[name]; refusal != nil {
			delete(wanted, name)
		}
	}
	for _, f := range first.Files {
		i := slices.IndexFunc(s.Files, func(old configdir.File) bool { return old.Path == f.Path })
		s.Files[i].Data = f.Data
	}
	for _, f := range s.Files {
		byPath[f.Path].check(t, string(f.Data))
	}
	after := load.NewLoader().Load(t.Context(), s)
	second, err := Edit(t.Context(), s, after, wanted)
	if err != nil || len(after.Errors) > 0 || len(second.Files) > 0 || len(second.Refused) > 0 {
		t.Fatalf("the second edit changes %v: %v %v %v", second.Files, second.Refused, after.Errors, err)
	}
}

func (g *generator) check(t *testing.T, got string) {
	t.Helper()
	want := g.edited.String()
	if got != want {
		t.Fatalf("%s:\n%s\nbecame\n%s\nand not\n%s", g.prefix, g.old.String(), got, want)
	}
	if lines := differentLines(g.old.String(), got); lines > 3*len(g.wanted) {
		t.Fatalf("%s: %d images in %d lines", g.prefix, len(g.wanted), lines)
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
