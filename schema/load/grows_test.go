package load

import (
	"strings"
	"testing"
)

// TestNewFieldsOfOtherPrograms: a later version of another program has fields that this one does not know. They are ignored
// with a warning, unless they resemble a known field, or select bytes.
func TestNewFieldsOfOtherPrograms(t *testing.T) {
	const longhornNode = "apiVersion: longhorn.io/v1beta2\nkind: Node\nmetadata: {name: n1}\nspec: {disks: {d1: {path: /disk}}}\n"
	for _, tt := range []struct{ name, text, old, with, warning, problem string }{
		{"a BackingImage", backingImage, "spec: {", "spec: {replication: 3, ", "spec.replication: is not a field that this program knows: it is ignored", ""},
		{"a typing error", backingImage, "spec: {", "spec: {minNumberOfCopy: 3, ", "", "did you mean \"minNumberOfCopies\"?"},
		{"a field of another mapping", backingImage, "spec: {", "spec: {uuid: 6846a0b2, ", "", "\"uuid\" belongs in status"},
		{"a parameter of the source", itsBackingImage, "export-type: raw", "export-type: raw, flatten: \"true\"", "", "spec.sourceParameters.flatten: unknown field"},
		{"a Node", longhornNode, "spec: {", "spec: {cpuReserve: 3, ", "spec.cpuReserve: is not a field", ""},
		{"a disk of a Node", longhornNode, "{path: /disk", "{path: /disk, quota: [1]", "spec.disks.d1.quota: is not a field", ""},
		{"a VirtualMachineImage", machineImage, "spec: {", "spec: {project: {a: b}, ", "spec.project: is not a field", ""},
		{"a DataVolume", dataVolume, "spec: {", "spec: {volumeMode: x, ", "spec.volumeMode: is not a field", ""},
		{"a source of a DataVolume", dataVolume, "http: {", "http: {compression: x, ", "", "spec.source.http.compression: unknown field"},
		{"outside of spec", backingImage, "spec: {", "replication: 3\nspec: {", "", "replication: unknown field"},
		{"the native form", "images: {parrot: {source: {upload: {}}}}\n", "{source", "{replication: 3, source", "", "images.parrot.replication: unknown field"},
	} {
		t.Run(strings.ReplaceAll(tt.name, " ", "_"), func(t *testing.T) {
			text := strings.Replace(tt.text, tt.old, tt.with, 1)
			if text == tt.text {
				t.Fatal("nothing was replaced")
			}
			r := load(t, text)
			if got := describe(r); !strings.Contains(got, tt.warning) || !strings.Contains(got, tt.problem) || tt.problem == "" && len(r.Errors) > 0 || tt.problem != "" && len(r.Errors) != 1 {
				t.Errorf("got\n%s\nwant the warning %q and the problem %q", got, tt.warning, tt.problem)
			}
		})
	}
}
