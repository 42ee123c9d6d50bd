package schema

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
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
				if r.Allowed != Everything {
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
