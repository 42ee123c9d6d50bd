package load

import (
	"fmt"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// TestHarvester loads each file of testdata/harvester as one directory.
func TestHarvester(t *testing.T) { testNeighbour(t, "testdata/harvester") }

// TestHarvesterMutations changes one line of a manifest.
func TestHarvesterMutations(t *testing.T) {
	testMutations(t, "testdata/harvester/cluster.yaml", "testdata/harvester/only-vmimages.yaml", "testdata/harvester/gitops.yaml", "testdata/harvester/v1.1.yaml")
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
		{"with an annotation, and its BackingImage", replace(all, "metadata: {", "metadata: {annotations: {backing-image-manager/track: \"{}\"}, "),
			"metadata.annotations.backing-image-manager/track: is not used", "1cfb10f6", ""},
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

// TestImagesWithoutFilesAreSkipped: an image of the data engine v2 or of CDI has no file. Its dump is valid, nothing that names
// the image declares it, and its name protects copies that were declared in any other way.
func TestImagesWithoutFilesAreSkipped(t *testing.T) {
	v2 := strings.Replace(itsBackingImage, "spec: {", "spec: {dataEngine: v2, ", 1)
	const class = `apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: class}
provisioner: driver.longhorn.io
parameters: {backingImage: vmi-2827688d-e6a1-4a3b-8d46-4138a6233255%s}
---
`
	for name, text := range map[string]string{
		"a BackingImage":        v2,
		"a VirtualMachineImage": machineImage + v2 + itsClaim,
		"a VirtualMachineImage by its name": machineImage + itsClaim +
			strings.Replace(v2, ", annotations: {harvesterhci.io/imageId: default/golden}", "", 1),
		"a StorageClass with its name": v2 + fmt.Sprintf(class, ""),
		"a StorageClass with a source": v2 + fmt.Sprintf(class, `, backingImageDataSourceType: download, backingImageDataSourceParameters: '{"url": "https://example.com/a"}'`),
		"an image of CDI":              strings.Replace(machineImage, "spec: {", "spec: {backend: cdi, ", 1),
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			r := load(t, text+"images: {other: {source: {upload: {}}}}\n")
			mustBeValid(t, r)
			if len(r.Config.Images) != 1 {
				t.Errorf("declared: %v", sortedKeys(r.Config.Images))
			}
			if _, undecided := r.Undecided.MayDeclare("vmi-2827688d-e6a1-4a3b-8d46-4138a6233255", model.Declaration{}); !undecided {
				t.Errorf("the image may be deleted:\n%s", describe(r))
			}
		})
	}
}
