package load

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// costly are files of the limit of one file each, by what they have too much of.
func costly() map[string]configdir.File {
	var names, settings, embedded strings.Builder
	for i := range maxDefinitions + 1 {
		fmt.Fprintf(&names, ",\"a%d\":0", i)
		fmt.Fprintf(&settings, "  a%d: 0\n", i)
	}
	for i := range maxDocuments + 1 {
		fmt.Fprintf(&embedded, "  a%d.yaml: \"images: {}\"\n", i)
	}
	return map[string]configdir.File{
		"values of JSON":  {Path: "x.json", Data: []byte(`{"images": {}, "x": [` + strings.Repeat("0,", 1_000_000) + "0]}")},
		"values of YAML":  {Path: "x.yaml", Data: []byte("images: {}\nx: [" + strings.Repeat("0,", 1_000_000) + "0]\n")},
		"values in text":  {Path: "x.json", Data: []byte(`{"apiVersion": "v1", "kind": "ConfigMap", "data": {"a.yaml": "images: {}\nx:` + strings.Repeat(`\n- 0`, 600_000) + `"}}`)},
		"documents":       {Path: "x.yaml", Data: []byte(strings.Repeat("---\n", maxDocuments+2))},
		"many documents":  {Path: "x.yaml", Data: []byte(strings.Repeat("---\n", 1_000_000))},
		"embedded files":  {Path: "x.yaml", Data: []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\ndata:\n" + embedded.String())},
		"items of a list": {Path: "x.yaml", Data: []byte("apiVersion: v1\nkind: List\nitems:\n" + strings.Repeat("- {apiVersion: v1, kind: X}\n", maxDocuments+1))},
		"names":           {Path: "x.json", Data: []byte(`{"images": {` + names.String()[1:] + "}}")},
		"settings":        {Path: "x.yaml", Data: []byte("settings:\n" + settings.String())},
	}
}

// A file that costs too much is one error, which names the file and the limit. It declares nothing,
// the other files are read, and what the file declared before stays in force.
func TestFileThatCostsTooMuch(t *testing.T) {
	race.Skip(t)
	for name, f := range costly() {
		t.Run(name, func(t *testing.T) {
			l := NewLoader()
			load := func(files ...configdir.File) Result { return l.Load(t.Context(), configdir.Snapshot{Files: files}) }
			other := configdir.File{Path: "a.yaml", Data: []byte("images: {a1: {source: {upload: {}}}}")}
			mustBeValid(t, load(other, configdir.File{Path: f.Path, Data: []byte(`{"images": {"x1": {"source": {"upload": {}}}}}`)}))
			other.Data = []byte("images: {a2: {source: {upload: {}}}}")
			r := load(other, f)
			if len(r.Errors) != 1 || r.Errors[0].File != f.Path || !strings.Contains(r.Errors[0].Message, "has more than") || r.Allowed != schema.NoDeletions {
				t.Fatalf("got %d errors, the first ones %.3v, allowed %s", len(r.Errors), r.Errors, r.Allowed)
			}
			if got := strings.Join(sortedKeys(r.Config.Images), " "); got != "a2 x1" {
				t.Errorf("the images are %s, want a2 and the x1 from before", got)
			}
			checkResult(t, r)
			if again := load(other, f); describe(again) != describe(r) {
				t.Errorf("the second load: %.3v", again.Errors)
			}
		})
	}
}

// Of files that cost too much together, those that cost most are left out, until they fit again.
func TestFilesThatCostTooMuchTogether(t *testing.T) {
	race.Skip(t)
	big := func(name string, values int) configdir.File {
		return configdir.File{Path: name, Data: []byte("nodes: {}\nimages: {}\nx: [" + strings.Repeat("0,", values) + "0]\n")}
	}
	small := configdir.File{Path: "z.yaml", Data: []byte("images: {a1: {source: {upload: {}}}}")}
	l := NewLoader()
	files := []configdir.File{big("a.yaml", 400_000), big("b.yaml", 300_000), big("c.yaml", 350_000), small}
	var leftOut []string
	r := l.Load(t.Context(), configdir.Snapshot{Files: files})
	for _, p := range r.Errors {
		if strings.Contains(p.Message, "together") {
			leftOut = append(leftOut, p.File)
		}
	}
	if fmt.Sprint(leftOut) != "[a.yaml]" || len(r.Config.Images) != 1 {
		t.Errorf("left out are %v, want the largest file; there are %d images", leftOut, len(r.Config.Images))
	}
	r = l.Load(t.Context(), configdir.Snapshot{Files: []configdir.File{files[0], files[1], small}})
	if len(r.Errors) != 2 || strings.Contains(r.Errors[0].Message, "together") {
		t.Errorf("without one of them: %v, want only the unknown fields", r.Errors)
	}
}

// What .cue files result in may be much more than they have. The Loader keeps no result that is left out.
func TestTextOfCUETogether(t *testing.T) {
	race.Skip(t)
	var files []configdir.File
	for i := range maxText/maxUnitText + 2 {
		text := fmt.Sprintf("import \"strings\"\nlet x = strings.Repeat(\"x\", 999_000)\nimages: a%d: source: download: url: \"https://example.com/\" + x%s\n", i, strings.Repeat(" + x", 7))
		files = append(files, configdir.File{Path: fmt.Sprintf("%d.cue", i), Data: []byte(text)})
	}
	l := NewLoader()
	for range 2 {
		r := l.Load(t.Context(), configdir.Snapshot{Files: files})
		if len(r.Errors) != 2 || r.Errors[0].File != "4.cue" || !strings.Contains(r.Errors[0].Message, "bytes of text in .cue files together") || len(r.Config.Images) != 4 {
			t.Fatalf("got %d images and %.300v, want those of four files", len(r.Config.Images), r.Errors)
		}
		if len(l.files) != 4 {
			t.Errorf("%d results are kept", len(l.files))
		}
	}
}

// There may be very many problems. A result has the first ones.
func TestProblemsAreLimited(t *testing.T) {
	race.Skip(t)
	text := "settings:\n"
	for i := range 10 * maxErrors {
		text += fmt.Sprintf("  a%d: 0\n", i)
	}
	r := load(t, text)
	if len(r.Errors) != maxErrors+1 || r.Errors[0].Line != 2 || !strings.Contains(r.Errors[maxErrors].Message, "and 9,000 further problems") {
		t.Errorf("got %d problems, the last one %v", len(r.Errors), r.Errors[len(r.Errors)-1])
	}
}

// 10,000 images and 1,000 nodes are within the limits.
func TestLimitsLeaveRoom(t *testing.T) {
	images := manyImages(10_000)
	s := oneFile(images)
	if w := document.Weight(s.Files[0].Data); w > maxFileValues*6/10 || w > maxValues/3 || len(images)+1000 > maxDefinitions*19/20 || len(s.Files[0].Data) > configdir.MaxFile*7/10 {
		t.Errorf("10,000 images have %d values and %d bytes", w, len(s.Files[0].Data))
	}
}

// So many images and disks that the planner would take longer than a round leave the last
// configuration in force.
func TestTooManyPairsOfImagesAndDisks(t *testing.T) {
	l := NewLoader()
	l.maxPairs = 3
	load := func(disks string) Result {
		return l.Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte("images: {a1: {source: {upload: {}}}, a2: {source: {upload: {}}}}\nnodes: {n1: {disks: {" + disks + "}}}\n")}}})
	}
	const many, few = "d1: {path: /d1}, d2: {path: /d2}", "d1: {path: /d1}"
	if r := load(many); len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Message, "2 images and 2 disks") || r.Allowed != schema.ObserveOnly || len(r.Config.Images) != 0 {
		t.Errorf("at the start: %d images, %v, allowed %s", len(r.Config.Images), r.Errors, r.Allowed)
	}
	mustBeValid(t, load(few))
	if r := load(many); len(r.Errors) != 1 || r.Allowed != schema.NoDeletions || len(r.Config.Images) != 2 || countDisks(r.Config) != 1 {
		t.Errorf("later: %d images, %d disks, %v, allowed %s", len(r.Config.Images), countDisks(r.Config), r.Errors, r.Allowed)
	}
	mustBeValid(t, load(few))
}

// So many desired copies that the status document of a node would not fit into memory leave the last
// configuration in force.
func TestTooManyDesiredCopies(t *testing.T) {
	const nodes = "nodes: {n1: {tags: [a], disks: {d1: {path: /d1}, d2: {path: /d2, tags: [b]}}}, n2: {disks: {d1: {path: /d1}}}}\n"
	for _, tt := range []struct {
		image  string
		copies int
	}{
		{"{minNumberOfCopies: 2}", 2},
		{"{minNumberOfCopies: 9}", 3},
		{"{minNumberOfCopies: all}", 3},
		{"{minNumberOfCopies: all, nodeSelector: [a]}", 2},
		{"{minNumberOfCopies: all, diskSelector: [b]}", 1},
		{"{minNumberOfCopies: 1, disks: [n1/d1, n1/d2]}", 3},
	} {
		for _, limit := range []int{tt.copies, tt.copies - 1} {
			l := NewLoader()
			l.maxCopies = limit
			image := strings.TrimSuffix(tt.image, "}") + ", source: {upload: {}}}"
			r := l.Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte("images: {a1: " + image + "}\n" + nodes)}}})
			if limit == tt.copies {
				mustBeValid(t, r)
			} else if len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Message, fmt.Sprintf("%d desired copies: more than %d", tt.copies, limit)) || r.Allowed != schema.ObserveOnly {
				t.Errorf("%s with a limit of %d: %v, allowed %s", tt.image, limit, r.Errors, r.Allowed)
			}
		}
	}
}
