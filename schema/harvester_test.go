package schema

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

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

// neighbourImage is an image in expected.json.
type neighbourImage struct {
	UUID, Checksum, Title *string
	MinNumberOfCopies     *int
	Source                *Source
}

// neighbourFile is the expected result of a file.
type neighbourFile struct {
	OK        bool
	Images    json.RawMessage // by name, or a list of the names
	Documents []struct{ Kind, Name, Result string }
	Mistakes  []struct {
		Reason, Path string
		Names        []string
	}
	Proposes string
}

// TestHarvester loads each file of testdata/harvester as one directory.
func TestHarvester(t *testing.T) { testNeighbour(t, "testdata/harvester") }

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
				read := slices.ContainsFunc(r.Manifests, func(m manifest.Document) bool { return m.Kind == doc.Kind && m.Name == doc.Name })
				skipped := slices.ContainsFunc(r.Skipped, func(s manifest.Skipped) bool { return s.Kind == doc.Kind && s.Name == doc.Name })
				if read == skipped || skipped != (doc.Result == "skipped") {
					t.Errorf("%s %s: read %v, skipped %v, want %s", doc.Kind, doc.Name, read, skipped, doc.Result)
				}
			}
			if len(want.Documents) > 0 && len(r.Manifests)+len(r.Skipped) != len(want.Documents) {
				t.Errorf("%d documents, want %d", len(r.Manifests)+len(r.Skipped), len(want.Documents))
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
		if want.Checksum != nil && got.Source.Clone == nil && !strings.HasSuffix(got.Checksum.String(), *want.Checksum) || want.Source != nil && want.Checksum == nil && !got.Checksum.IsZero() {
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

func wantSource(t *testing.T, name string, got, want Source) {
	t.Helper()
	if got.Kind() != want.Kind() {
		t.Errorf("%s: source %s, want %s", name, got.Kind(), want.Kind())
		return
	}
	if want.Restore != nil && want.Restore.ConcurrentLimit == 0 {
		want.Restore.ConcurrentLimit = 2 // the default of the native form
	}
	parameters := func(s Source) map[string]string { return Image{Source: s}.longhornSource().Parameters }
	if !maps.Equal(parameters(got), parameters(want)) {
		t.Errorf("%s: parameters %v, want %v", name, parameters(got), parameters(want))
	}
	if d := want.Download; d != nil && (got.Download.Credentials != d.Credentials) {
		t.Errorf("%s: credentials %q, want %q", name, got.Download.Credentials, d.Credentials)
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

// TestHarvesterMutations changes one line of a manifest.
func TestHarvesterMutations(t *testing.T) {
	testMutations(t, "testdata/harvester/cluster.yaml", "testdata/harvester/only-vmimages.yaml", "testdata/harvester/gitops.yaml", "testdata/harvester/v1.1.yaml")
}

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
				if r.Allowed != Everything {
					rejected++
					if !slices.ContainsFunc(r.Errors, func(p document.Problem) bool { return p.File == "a.yaml" && p.Line > 0 }) {
						t.Errorf("%s, %s: no error has a line:\n%s", name, which, describe(r))
					}
					continue
				}
				for image, was := range before.Config.Images {
					is, declared := r.Config.Images[image]
					_, undecided := r.Undecided().MayDeclare(image, was.Declaration)
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

// machineImage and its BackingImage, which has its name from the uid.
const (
	machineImage = `apiVersion: harvesterhci.io/v1beta1
kind: VirtualMachineImage
metadata: {name: golden, namespace: default, uid: 2827688d-e6a1-4a3b-8d46-4138a6233255}
spec: {displayName: Golden, sourceType: export-from-volume, pvcName: vm, pvcNamespace: default}
---
`
	itsBackingImage = `apiVersion: longhorn.io/v1beta2
kind: BackingImage
metadata: {name: vmi-2827688d-e6a1-4a3b-8d46-4138a6233255, namespace: longhorn-system, annotations: {harvesterhci.io/imageId: default/golden}}
spec: {sourceType: export-from-volume, sourceParameters: {volume-name: pvc-1, export-type: raw}}
status: {uuid: 1cfb10f6}
---
`
	itsClaim = `apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: vm, namespace: default}
spec: {volumeName: pvc-1}
---
`
)

func TestVirtualMachineImages(t *testing.T) {
	const all = machineImage + itsBackingImage + itsClaim
	replace := func(text, old, with string) string {
		t.Helper()
		if !strings.Contains(text, old) {
			t.Fatalf("%q is not in the text", old)
		}
		return strings.Replace(text, old, with, 1)
	}
	const image = "vmi-2827688d-e6a1-4a3b-8d46-4138a6233255"
	for _, tt := range []struct {
		name, text  string
		want        string // of a problem; "": there is none
		uuid, title string // of the image; "": not checked
	}{
		{"with its BackingImage", all, "", "1cfb10f6", "Golden"},
		{"with its BackingImage, by its name", replace(all, ", annotations: {harvesterhci.io/imageId: default/golden}", ""), "", "1cfb10f6", "Golden"},
		{"with its BackingImage, without the claim", machineImage + itsBackingImage, "", "1cfb10f6", "Golden"},
		{"with another volume", replace(all, "spec: {volumeName: pvc-1}", "spec: {volumeName: pvc-2}"),
			"config.yaml:15:20: PersistentVolumeClaim.spec.volumeName: data source is different: image \"" + image + "\" has another volume-name", "1cfb10f6", ""},
		{"with two claims of other volumes", all + replace(replace(itsClaim, ", namespace: default", ""), "pvc-1", "pvc-2"),
			"config.yaml:4:70: spec.pvcName: refers to PersistentVolumeClaims of different volumes, see also config.yaml:17:1 (keep one of them, or set metadata.namespace in each claim)", "1cfb10f6", ""},
		{"with two BackingImages", all + replace(itsBackingImage, "vmi-2827688d", "vmi-00000000"), "metadata.name: has two BackingImages: ", "", ""},
		{"with a BackingImage of another kind", replace(all, "kind: BackingImage", "kind: Image"), "metadata.name: has no BackingImage, and the Image \"" + image + "\", which may be it, is skipped", "", ""},
		{"with a BackingImage of another group", replace(all, "longhorn.io/v1beta2", "example.com/v1"), "apiVersion: unknown version", "", ""},
		{"with a BackingImage without its uuid", replace(all, "uuid: 1cfb10f6", "checksum: "+strings.Repeat("a", 128)), "status.uuid: is missing, but the status has the size or the checksum of the file", "", ""},
		{"without its BackingImage", machineImage + itsClaim, "warning: metadata.name: has no BackingImage here, so no copy of Longhorn can be adopted by its uuid", "", "Golden"},
		{"without its BackingImage and claim", machineImage, "warning: spec.pvcName: has no manifest of the PersistentVolumeClaim", "", "Golden"},
		{"beside a data source of Longhorn", machineImage + itsClaim + replace(itsBackingImage, "kind: BackingImage", "kind: BackingImageDataSource"), "warning: metadata.name: has no BackingImage here", "", "Golden"},
		{"with a title of two lines", replace(all, "displayName: Golden", `displayName: "a\nb"`), "", "1cfb10f6", ""},
		{"without a BackingImage, with a title of two lines", replace(machineImage+itsClaim, "displayName: Golden", `displayName: "a\nb"`), "spec.displayName: is not used as the title", "", ""},
		{"with a field that only this program adds", "resolved: {backingImage: x}\n" + all, ": resolved: unknown field", "", ""},
		{"with a status and without a uid", replace(machineImage, ", uid: 2827688d-e6a1-4a3b-8d46-4138a6233255}", "}\nstatus: {progress: 100}"), "config.yaml:3:18: metadata.uid: is missing", "", ""},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			r := load(t, tt.text)
			var text strings.Builder
			for _, p := range r.Errors {
				fmt.Fprintln(&text, p)
			}
			for _, p := range r.Warnings {
				fmt.Fprintln(&text, "warning: "+p.Path.String()+": "+p.Message)
			}
			if !strings.Contains(text.String(), tt.want) || tt.want == "" && len(r.Errors) > 0 {
				t.Errorf("problems:\n%s\nwant %q", &text, tt.want)
			}
			got := r.Config.Images[image]
			if tt.uuid != "" && got.ID.UUID != tt.uuid || tt.title != "" && got.Title != tt.title {
				t.Errorf("uuid %s, title %q", got.ID.UUID, got.Title)
			}
		})
	}
}

// TestManyVirtualMachineImages: VirtualMachineImages count as images in the limit of a file.
func TestManyVirtualMachineImages(t *testing.T) {
	var text strings.Builder
	for i := range maxDefinitions + 1 {
		fmt.Fprintf(&text, "--- {apiVersion: harvesterhci.io/v1beta1, kind: VirtualMachineImage, metadata: {name: a%d, namespace: b}, spec: {displayName: a, sourceType: upload}}\n", i)
	}
	if r := load(t, text.String()); len(r.Errors) != 1 || !strings.Contains(r.Errors[0].Message, "images, nodes and settings") {
		t.Errorf("%d errors:\n%.1000s", len(r.Errors), describe(r))
	}
}
