package load

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// TestManifestsEqualTheNativeForm loads the two files of each archive in testdata/manifest: a
// manifest and its native form must result in the same configuration.
func TestManifestsEqualTheNativeForm(t *testing.T) {
	race.Skip(t)
	entries, err := os.ReadDir("testdata/manifest")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Run(strings.TrimSuffix(e.Name(), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile("testdata/manifest/" + e.Name())
			if err != nil || len(a.Files) != 2 {
				t.Fatalf("%d files, error %v", len(a.Files), err)
			}
			var digests []string
			for _, f := range a.Files {
				r := NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: f.Name, Data: f.Data}}})
				if r.Allowed != schema.Everything {
					t.Fatalf("not valid:\n%s", describe(r))
				}
				digests = append(digests, r.Digest+string(mustJSON(t, r.Config)))
			}
			if digests[0] != digests[1] {
				t.Errorf("%s results in\n%s\n%s results in\n%s", a.Files[0].Name, digests[0], a.Files[1].Name, digests[1])
			}
		})
	}
}

func mustJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A manifest may not have the fields that this program adds to others, wherever they stand.
func TestManifestCannotHaveAddedFields(t *testing.T) {
	const class = "---\napiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshotClass\nmetadata: {name: c}\ndriver: driver.longhorn.io\ndeletionPolicy: Delete\nparameters: {type: bi, export-type: raw}\n"
	for _, kind := range []string{
		"apiVersion: longhorn.io/v1beta2\nkind: BackingImage\nmetadata: {name: parrot}\nspec: {sourceType: upload}\n",
		"apiVersion: snapshot.storage.k8s.io/v1\nkind: VolumeSnapshot\nmetadata: {name: parrot}\nspec: {volumeSnapshotClassName: c, source: {persistentVolumeClaimName: p}}\n",
		"apiVersion: harvesterhci.io/v1beta1\nkind: VirtualMachineImage\nmetadata: {name: parrot, namespace: default}\nspec: {displayName: a, sourceType: upload}\n",
		"apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata: {name: parrot}\nspec: {source: {http: {url: \"https://example.com/a.raw\"}}, storage: {resources: {requests: {storage: 1Gi}}}}\n",
	} {
		for _, field := range []string{"resolved", "VolumeSnapshotClass", "PersistentVolumeClaim", "VirtualMachineImage"} {
			added := field + ": {spec: {volumeName: v}, parameters: {type: bi}}\n"
			for _, text := range []string{added + kind, kind + added} {
				r := load(t, text+class)
				if !slices.ContainsFunc(r.Errors, func(p document.Problem) bool { return strings.Contains(p.String(), field+": unknown field") }) {
					t.Errorf("%s\nis accepted: %v", text, r.Errors)
				}
			}
		}
	}
}
