package load

import (
	"slices"
	"strings"
	"testing"
)

// TestCDI loads each file of testdata/cdi as one directory.
func TestCDI(t *testing.T) { testNeighbour(t, "testdata/cdi") }

// TestCDIMutations changes one line of a manifest.
func TestCDIMutations(t *testing.T) { testMutations(t, "testdata/cdi/all.yaml") }

const dataVolume = `apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {name: golden, namespace: a}
spec: {source: {http: {url: "https://example.com/golden.raw"}}, storage: {}}
---
`

func TestDataVolumes(t *testing.T) {
	sum := strings.Repeat("0a", 32)
	for _, tt := range []struct {
		name, old, with string // of dataVolume
		more            string // after it
		want            string // of a problem, a warning or a skipped document; "": there is none
		image           string // "": none
	}{
		{"http", "", "", "", "", "golden"},
		{"the same in another namespace", "", "", strings.Replace(dataVolume, "namespace: a", "namespace: b", 1), "declares the same image as the manifest in config.yaml:3:18", "golden"},
		{"another one in another namespace", "", "", strings.NewReplacer("namespace: a", "namespace: b", "golden.raw", "other.raw").Replace(dataVolume), "images.golden is defined twice", ""},
		{"the same as a VolumeImportSource", "", "", strings.NewReplacer("DataVolume", "VolumeImportSource", ", storage: {}", "").Replace(dataVolume), "declares the same image as the manifest in config.yaml:3:18", "golden"},
		{"the same behind one with an owner", "namespace: a", "namespace: a, ownerReferences: [{kind: VirtualMachineImage, name: golden}]", strings.Replace(dataVolume, "namespace: a", "namespace: b", 1), "skipped: belongs to a VirtualMachineImage", "golden"},
		{"the same behind an archive", "storage: {}", "storage: {}, contentType: archive", strings.Replace(dataVolume, "namespace: a", "namespace: b", 1), "skipped: has the contentType archive", "golden"},
		{"the same behind one in several steps", "storage: {}", "storage: {}, checkpoints: [{current: x, previous: y}]", strings.Replace(dataVolume, "namespace: a", "namespace: b", 1), "skipped: imports its disk in several steps", "golden"},
		{"beside the native form", "", "", "images: {golden: {source: {upload: {}}}}\n", "images.golden: is defined twice", ""},
		{"a long name", "name: golden", "name: " + strings.Repeat("a", 41), "", "names are in lower case and have at most 40 characters", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-" + "9178f65d"},
		{"a short name", "name: golden", "name: g", "", "skipped: has a name that an image cannot have: name \"g\"", ""},
		{"an owner", "namespace: a", "namespace: a, ownerReferences: [{kind: VirtualMachineImage, name: golden}]", "", "skipped: belongs to a VirtualMachineImage", ""},
		{"a user in the address", "https://", "https://me:hunter2@", "", "spec.source.http.url: contains a user", ""},
		{"gs", "https://", "gs://", "", "skipped: has its image in Google Cloud Storage", ""},
		{"a packed file", "golden.raw\"", "golden.raw.gz\", checksum: \"sha256:" + sum + "\"", "", "", "golden"},
		{"an unpacked file with a checksum of blanks", "golden.raw\"", "golden.raw\", checksum: \" SHA256 : " + sum + " \"", "", "", "golden"},
		{"two credentials", "namespace: a", "namespace: a, annotations: {backing-image-manager/credentials: x}", "", "", "golden"},
		{"a source and a sourceRef", "spec: {", "spec: {sourceRef: {kind: DataSource, name: x}, ", "", "spec.source: is not used beside sourceRef", ""},
		{"a volume that is filled", "source: {http: {url: \"https://example.com/golden.raw\"}}, storage: {}", "storage: {dataSourceRef: {kind: VolumeImportSource, name: x}}", "", "skipped: has a volume that another manifest fills", ""},
		{"a DataSource of another group", "", "", "apiVersion: example.com/v1\nkind: DataSource\nmetadata: {name: c}\nspec: {}\n", "skipped: is not a manifest that this program reads", "golden"},
		{"a group with a typing error", "cdi.kubevirt.io", "cdi.kubvirt.io", "", "apiVersion: unknown version", ""},
		{"an older version", "v1beta1", "v1alpha1", "", "apiVersion: unknown version", ""},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			text := strings.Replace(dataVolume, tt.old, tt.with, 1) + tt.more
			if tt.old != "" && !strings.Contains(dataVolume, tt.old) {
				t.Fatalf("%q is not in the manifest", tt.old)
			}
			r := load(t, text)
			var all []string
			for _, p := range slices.Concat(r.Errors, r.Warnings) {
				all = append(all, p.String())
			}
			for _, s := range r.Skipped {
				all = append(all, "skipped: "+s.Why)
			}
			problems := strings.Join(all, "\n")
			if !strings.Contains(problems, tt.want) || tt.want == "" && len(all) > 0 {
				t.Errorf("problems:\n%s\nwant %q", problems, tt.want)
			}
			if strings.Contains(problems, "hunter2") {
				t.Errorf("a problem contains a password:\n%s", problems)
			}
			_, declared := r.Config.Images[tt.image]
			if len(r.Config.Images) > 1 || declared != (tt.image != "") {
				t.Errorf("images %v, want %q", sortedKeys(r.Config.Images), tt.image)
			}
		})
	}
	packed := mustLoad(t, strings.Replace(dataVolume, "golden.raw\"", "golden.raw.gz\", checksum: \"sha256:"+sum+"\"", 1)).Images["golden"]
	if !packed.Checksum.IsZero() || packed.Source.Download.PackedChecksum.String() != "sha256:"+sum {
		t.Errorf("checksum %v, of the packed file %v", packed.Checksum, packed.Source.Download.PackedChecksum)
	}
}
