package load

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// The documents of Longhorn that contain YAML.
const (
	managerREADME = "backing-image-manager" // Longhorn Backing Image Manager
	backingImages = "backing-image"         // Backing Image
	csiSnapshots  = "extend-csi-snapshot"   // Extend CSI snapshot to support Longhorn BackingImage
)

// Outcomes that several blocks have.
const (
	flat      = "metadata.name: is missing (\"name\" belongs in \"metadata\": indent it)"
	flatClaim = "9: kind: duplicate field (put a line with \"---\" between two manifests)"
	noClaim   = "skipped PersistentVolumeClaim: is not a manifest that this program reads"
	noClass   = "skipped VolumeSnapshot: is of the VolumeSnapshotClass \"longhorn-snapshot-vsc\", which is not declared here"
	ofContent = "skipped VolumeSnapshot: leaves the image to its VolumeSnapshotContent"
	exported  = "image test-bi: export of vol-export-src as qcow2"
	parrot    = "image test-bi: download of https://longhorn-backing-image.s3-us-west-1.amazonaws.com/parrot.qcow2, checksum bd79ab9e"
)

// documented are the blocks of YAML in Longhorn's documents. want is the result of a block as the
// only file of a directory. The web pages of some documents show the blocks without indentation:
// flat is the result of the block as the page shows it, and want the result of the block with the
// indentation that the source of the document has.
var documented = []struct{ document, block, content, want, flat string }{
	{managerREADME, "01", "a pod, with [...] for the rest", "11: not valid YAML: could not find expected ':' (write \"name: value\")", "11: not valid YAML: could not find expected ':' (write \"name: value\")"},

	{backingImages, "01", "two images, without --- between them", `16: apiVersion: duplicate field (put a line with "---" between two manifests)`, ""},
	{backingImages, "01-first", "an image to download", "image bi-download: download of https://longhorn-backing-image.s3-us-west-1.amazonaws.com/parrot.raw, checksum 304f3ed3", ""},
	{backingImages, "01-second", "an image to export", "image bi-export: export of vol-export-src as qcow2", ""},
	{backingImages, "02", "a class, with a sentence for a checksum", "15: parameters.backingImageChecksum: checksum is not hexadecimal: a sha512 has 128 digits of 0-9 and a-f", ""},
	{backingImages, "03", "a class that makes its image", "image bi-export-from-volume: export of vol-export-src as qcow2", ""},

	{csiSnapshots, "01", "a class of images", "", "4: " + flat},
	{csiSnapshots, "02", "an image of a volume, with that class", noClass, "4: " + flat},
	{csiSnapshots, "01+02", "both of them", "image test-snapshot-backing: export of test-vol as qcow2", ""},
	{csiSnapshots, "03", "a volume of it", noClaim, flatClaim},
	{csiSnapshots, "04", "the handle of an image that is there", exported, "4: " + flat},
	{csiSnapshots, "05", "its snapshot", ofContent, "4: " + flat},
	{csiSnapshots, "06", "a volume of it", noClaim, flatClaim},
	{csiSnapshots, "07", "the handle of an image to download", parrot, "4: " + flat},
	{csiSnapshots, "08", "the handle of an image to export", "4: " + flat, "4: " + flat}, // in the source of the document, this block has no indentation either
	{csiSnapshots, "09", "its snapshot", ofContent, "4: " + flat},
	{csiSnapshots, "10", "a volume of it", noClaim, flatClaim},
	{csiSnapshots, "11", "as 02", noClass, "4: " + flat},
	{csiSnapshots, "12", "a class of images, raw by default", "", "5: " + flat},
	{csiSnapshots, "13", "as 02", noClass, "4: " + flat},
	{csiSnapshots, "12+13", "an image exported as raw", "image test-snapshot-backing: export of test-vol as raw", ""},
	{csiSnapshots, "14", "as 02", noClass, "4: " + flat},
	{csiSnapshots, "15", "a volume of it", noClaim, flatClaim},
	{csiSnapshots, "16", "the handle of an image that is there", parrot, "4: " + flat},
	{csiSnapshots, "17", "its snapshot", ofContent, "4: " + flat},
	{csiSnapshots, "18", "a volume of it", noClaim, flatClaim},
	{csiSnapshots, "19", "the handle of an image to download", parrot, "4: " + flat},
	{csiSnapshots, "20", "its snapshot", ofContent, "4: " + flat},
	{csiSnapshots, "21", "a volume of it", noClaim, flatClaim},
	{csiSnapshots, "22", "the handle of an image to export", "image test-bi: export of test-vol as qcow2", "4: " + flat},
	{csiSnapshots, "23", "its snapshot", ofContent, "4: " + flat},
	{csiSnapshots, "24", "a volume of it", noClaim, flatClaim},
}

// TestExamplesOfLonghornsDocuments loads the blocks of YAML in Longhorn's documents, unchanged.
func TestExamplesOfLonghornsDocuments(t *testing.T) {
	race.Skip(t)
	onPages := map[string]map[string]string{}
	for _, d := range []string{managerREADME, backingImages, csiSnapshots} {
		onPages[d] = blocks(t, d)
	}
	seen := map[string]bool{}
	for _, d := range documented {
		t.Run(d.document+"/"+d.block, func(t *testing.T) {
			indented := onPages[d.document]
			if d.document != backingImages {
				indented = blocks(t, d.document+".indented")
			}
			var text []string
			for part := range strings.SplitSeq(d.block, "+") {
				text = append(text, indented[part])
				if page := onPages[d.document][part]; unindented(indented[part]) != unindented(page) || page == "" {
					t.Errorf("block %s differs from the page in more than the indentation", part)
				}
			}
			if got := outcome(t, strings.Join(text, "---\n")); got != d.want {
				t.Errorf("%s:\n got %s\nwant %s", d.content, got, d.want)
			}
			if len(text) > 1 {
				return // no page has the combined blocks as one block
			}
			seen[d.document+d.block] = true
			if got := outcome(t, onPages[d.document][d.block]); d.flat != "" && got != d.flat {
				t.Errorf("%s, with the indentation of the page:\n got %s\nwant %s", d.content, got, d.flat)
			}
		})
	}
	for d, page := range onPages {
		for block := range page {
			if !seen[d+block] {
				t.Errorf("%s, block %s is not in the table", d, block)
			}
		}
	}
}

func blocks(t *testing.T, document string) map[string]string {
	t.Helper()
	a, err := txtar.ParseFile("testdata/documents/" + document + ".txtar")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, f := range a.Files {
		found[strings.TrimSuffix(f.Name, ".yaml")] = string(f.Data)
	}
	return found
}

func unindented(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimLeft(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// outcome loads a configuration that consists of one file. It returns a line for each error, warning,
// skipped document and image.
func outcome(t *testing.T, text string) string {
	r := NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(text)}}})
	var lines []string
	add := func(what string, p document.Problem) {
		if p.Line == 0 {
			return // this error only reports that nothing is declared; r.Skipped has the reason
		}
		line := p.Line
		p.Position = document.Position{}
		lines = append(lines, fmt.Sprintf("%s%d: %s", what, line, p))
	}
	for _, p := range r.Errors {
		add("", p)
	}
	for _, p := range r.Warnings {
		add("warning: ", p)
	}
	for _, s := range r.Skipped {
		lines = append(lines, fmt.Sprintf("skipped %s: %s", s.Kind, s.Why))
	}
	for _, name := range sortedKeys(r.Config.Images) {
		switch m := r.Config.Images[name]; m.Source.Kind() {
		case schema.KindDownload:
			lines = append(lines, fmt.Sprintf("image %s: download of %s, checksum %.8s", name, m.Source.Download.URL, m.Checksum))
		case schema.KindExportFromVolume:
			e := m.Source.ExportFromVolume
			lines = append(lines, fmt.Sprintf("image %s: export of %s as %s", name, e.VolumeName, e.ExportType))
		}
	}
	if slices.Contains(lines, "") {
		t.Errorf("an empty line: %q", lines)
	}
	return strings.Join(lines, "\n")
}
