package load

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// neighbourImage is an image in expected.json.
type neighbourImage struct {
	UUID, Checksum, Title *string
	MinNumberOfCopies     *int
	Source                *schema.Source
}

// neighbourFile is the expected result of a file.
type neighbourFile struct {
	OK        bool
	Images    json.RawMessage // by name, or a list of the names
	Documents []struct{ Kind, Name, Result string }
	Skipped   map[string]string // KIND/NAME
	Mistakes  []struct {
		Reason, Path string
		Names        []string
	}
	Proposes string
}

// testNeighbour compares the results of all files of a folder with its expected.json.
func testNeighbour(t *testing.T, folder string) {
	var expected struct{ Files map[string]neighbourFile }
	if err := json.Unmarshal([]byte(readText(t, folder+"/expected.json")), &expected); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(folder + "/*.yaml")
	if len(files) != len(expected.Files) {
		t.Fatalf("%d files, and %d are expected", len(files), len(expected.Files))
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want := expected.Files[filepath.Base(name)]
			r := load(t, readText(t, name))
			if want.OK != (len(r.Errors) == 0) || len(r.Errors) != len(want.Mistakes) {
				t.Errorf("%d errors, want %d:\n%s", len(r.Errors), len(want.Mistakes), describe(r))
			}
			for _, mistake := range want.Mistakes {
				if !slices.ContainsFunc(r.Errors, func(p document.Problem) bool { return isMistake(p, mistake.Path, want.Proposes, mistake.Names) }) {
					t.Errorf("no error at %s that names %v and proposes %q:\n%s", mistake.Path, mistake.Names, want.Proposes, describe(r))
				}
			}
			for _, doc := range want.Documents {
				read := slices.ContainsFunc(r.Manifests, func(m schema.Manifest) bool { return m.Kind == doc.Kind && m.Name == doc.Name })
				skipped := slices.ContainsFunc(r.Skipped, func(s schema.Skipped) bool { return s.Kind == doc.Kind && s.Name == doc.Name })
				if read == skipped || skipped != (doc.Result == "skipped") {
					t.Errorf("%s %s: read %v, skipped %v, want %s", doc.Kind, doc.Name, read, skipped, doc.Result)
				}
			}
			if len(want.Documents) > 0 && len(r.Manifests)+len(r.Skipped) != len(want.Documents) {
				t.Errorf("%d documents, want %d", len(r.Manifests)+len(r.Skipped), len(want.Documents))
			}
			var skipped []string
			for _, s := range r.Skipped {
				skipped = append(skipped, s.Kind+"/"+s.Name)
			}
			if slices.Sort(skipped); want.Skipped != nil && !slices.Equal(skipped, sortedKeys(want.Skipped)) {
				t.Errorf("skipped\n%v, want\n%v", skipped, sortedKeys(want.Skipped))
			}
			wantImages(t, r, want.Images)
		})
	}
}

// isMistake reports whether a problem is at a path, and names and proposes what is expected. A name is that of
// an image, or NAMESPACE/NAME of the document with the problem.
func isMistake(p document.Problem, path, proposed string, names []string) bool {
	for _, name := range names {
		if !strings.Contains(name, "/") && !strings.Contains(p.String(), name) {
			return false
		}
	}
	return strings.HasPrefix(p.Path.String(), path) && strings.Contains(p.Hint, proposed) && p.Line > 0
}

func readText(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func wantImages(t *testing.T, r Result, expected json.RawMessage) {
	t.Helper()
	if len(expected) == 0 {
		return
	}
	var images map[string]neighbourImage
	if json.Unmarshal(expected, &images) != nil {
		var names []string
		if err := json.Unmarshal(expected, &names); err != nil {
			t.Fatal(err)
		}
		images = map[string]neighbourImage{}
		for _, name := range names {
			images[name] = neighbourImage{}
		}
	}
	if got, want := sortedKeys(r.Config.Images), sortedKeys(images); !slices.Equal(got, want) {
		t.Fatalf("images\n%v, want\n%v\n%s", got, want, describe(r))
	}
	for name, want := range images {
		got := r.Config.Images[name]
		if want.Source != nil && (got.UUIDDeclared != (want.UUID != nil) || want.UUID != nil && got.ID.UUID != *want.UUID) {
			t.Errorf("%s: uuid %s, declared %v", name, got.ID.UUID, got.UUIDDeclared)
		}
		if want.Checksum != nil && got.Source.Clone == nil && !strings.HasSuffix(got.Checksum.String(), strings.TrimPrefix(*want.Checksum, "sha512:")) || want.Source != nil && want.Checksum == nil && !got.Checksum.IsZero() {
			t.Errorf("%s: checksum %v", name, got.Checksum)
		}
		if want.Title != nil && got.Title != *want.Title {
			t.Errorf("%s: title %q, want %q", name, got.Title, *want.Title)
		}
		if want.MinNumberOfCopies != nil && got.Copies != *want.MinNumberOfCopies {
			t.Errorf("%s: %d copies, want %d", name, got.Copies, *want.MinNumberOfCopies)
		}
		if want.Source != nil {
			wantSource(t, name, got.Source, *want.Source)
		}
	}
}

func wantSource(t *testing.T, name string, got, want schema.Source) {
	t.Helper()
	if got.Kind() != want.Kind() {
		t.Errorf("%s: source %s, want %s", name, got.Kind(), want.Kind())
		return
	}
	if want.Restore != nil && want.Restore.ConcurrentLimit == 0 {
		want.Restore.ConcurrentLimit = 2 // the default of the native form
	}
	for _, s := range []*schema.Source{&got, &want} { // the uuid is computed from what selects the bytes
		if d := s.Download; d != nil {
			s.Download = &schema.Download{URL: d.URL, Credentials: d.Credentials, PackedChecksum: d.PackedChecksum}
		}
	}
	if is, wants := schema.UUID("x", ident.Digest{}, got), schema.UUID("x", ident.Digest{}, want); is != wants || got.Restore != nil && got.Restore.ConcurrentLimit != want.Restore.ConcurrentLimit {
		t.Errorf("%s: %v, want %v", name, is, wants)
	}
	if d := want.Download; d != nil && (got.Download.Credentials != d.Credentials || got.Download.PackedChecksum != d.PackedChecksum) {
		t.Errorf("%s: credentials %q and packed checksum %v, want %q and %v", name, got.Download.Credentials, got.Download.PackedChecksum, d.Credentials, d.PackedChecksum)
	}
	if c := want.Clone; c != nil && got.Clone.Secret != c.Secret {
		t.Errorf("%s: secret %q, want %q", name, got.Clone.Secret, c.Secret)
	}
}

// identities are the fields whose values select bytes: another value is another generation, on purpose.
var identities = []string{"url", "backup-url", "checksum", "uuid", "volume-name", "pvcName", "pvcNamespace", "volumeName",
	"backing-image", "encryption", "cryptoOperation", "sourceImageName", "sourceImageNamespace", "sourceType", "export-type"}

// imageNames are the fields whose values name an image: another value is another image, on purpose.
var imageNames = []string{"name", "namespace", "uid"}

// testMutations changes one line of a file, 1000 times in all. A loader that had the file before, and one
// that is new, must keep each image: it is declared with the same uuid, or there is an error that names
// the file, or a skipped document that may declare it.
func testMutations(t *testing.T, files ...string) {
	race.Skip(t)
	random := rand.New(rand.NewPCG(18, 1))
	for _, name := range files {
		text := readText(t, name)
		lines := strings.SplitAfter(strings.TrimSuffix(text, "\n"), "\n")
		running := NewLoader()
		before := running.Load(t.Context(), neighbourSnapshot(text))
		mustBeValid(t, before)
		rejected := 0
		for range 1000 / len(files) {
			mutated, changed := mutateLine(random, lines)
			restarted := NewLoader()
			restarted.checked = maps.Clone(running.checked) // of equal definitions; it saves time
			for which, l := range map[string]*Loader{"running": running, "restarted": restarted} {
				r := l.Load(t.Context(), neighbourSnapshot(mutated))
				if r.Allowed != schema.Everything {
					rejected++
					if !slices.ContainsFunc(r.Errors, func(p document.Problem) bool { return p.File == "a.yaml" && p.Line > 0 }) {
						t.Errorf("%s, %s: no error has a line:\n%s", name, which, describe(r))
					}
					continue
				}
				for image, was := range before.Config.Images {
					is, declared := r.Config.Images[image]
					_, undecided := r.Undecided.MayDeclare(image, was.Declaration)
					if declared && is.ID == was.ID || declared && slices.Contains(identities, changed) || !declared && undecided {
						continue
					}
					t.Errorf("%s, %s: %s would be %v:\n%s", name, which, was.ID, is.ID, firstDifference(text, mutated))
				}
			}
			running.Load(t.Context(), neighbourSnapshot(text))
		}
		if rejected == 0 {
			t.Errorf("%s: no mutation is an error", name)
		}
	}
}

func neighbourSnapshot(text string) configdir.Snapshot {
	return configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(text)}}}
}

// mutateLine deletes or repeats a line, changes its indentation, or changes a character. It does not change the
// values of names. If it changes a character of a value, or removes a checksum, it returns the name of the field.
func mutateLine(random *rand.Rand, lines []string) (text, changed string) {
	lines = slices.Clone(lines)
	for {
		i := random.IntN(len(lines))
		line := lines[i]
		field, _, _ := strings.Cut(strings.TrimLeft(line, " -"), ":")
		switch random.IntN(4) {
		case 0:
			if lines[i] = ""; field == "checksum" {
				changed = field
			}
		case 1:
			lines[i] = line + line
		case 2:
			lines[i] = "  " + line
		case 3:
			if len(line) < 2 {
				continue
			}
			b, at := []byte(line), random.IntN(len(line)-1)
			b[at] = "abz09 :-{\"'#."[random.IntN(13)]
			if at > strings.Index(line, ":") {
				changed = field
			}
			if slices.Contains(imageNames, changed) || strings.Contains(line, "backingImage=") {
				continue
			}
			lines[i] = string(b)
		}
		if lines[i] != line {
			return strings.Join(lines, ""), changed
		}
	}
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d: %q, before: %q", i+1, y[i], x[i])
		}
	}
	return "at the end"
}

// TestNeighboursAreTracked: the annotation of a neighbour's manifest is the field track.
func TestNeighboursAreTracked(t *testing.T) {
	const annotations = "annotations: {backing-image-manager/track: \"coreos: {stream: stable}\"}"
	c := mustLoad(t, `apiVersion: harvesterhci.io/v1beta1
kind: VirtualMachineImage
metadata: {name: b, namespace: a, `+annotations+`}
spec: {displayName: x, sourceType: download, url: "https://example.com/b"}
---
`+strings.Replace(dataVolume, "namespace: a", annotations, 1))
	for _, name := range []string{"a-b", "golden"} {
		if track := c.Images[name].Track; track == nil || track.CoreOS == nil {
			t.Errorf("%s: track is %+v", name, track)
		}
	}
}
