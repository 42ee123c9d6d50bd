package load

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func TestUUIDVectors(t *testing.T) {
	race.Skip(t)
	b, err := os.ReadFile("testdata/uuid.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		uuid, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if uuid == "#" {
			continue
		}
		name, image, _ := strings.Cut(rest, " ")
		// A clone needs the other image.
		c := mustLoad(t, fmt.Sprintf("images:\n  %s: %s\n  %s: {source: {upload: {}}}\n", name, image, other(name)))
		m := c.Images[name]
		if m.ID.UUID != uuid || m.ID.Name != name {
			t.Errorf("%s: %s has ID %s, want %s-%s", name, image, m.ID, name, uuid)
		}
		if m.UUIDDeclared != strings.Contains(image, "uuid:") {
			t.Errorf("%s: %s: declared is %t", name, image, m.UUIDDeclared)
		}
	}
}

func other(name string) string {
	if name == "robin" {
		return "parrot"
	}
	return "robin"
}

func TestUUIDSeparatesFields(t *testing.T) {
	// The end of one field must not be read as the beginning of the next.
	pairs := []struct{ volume, snapshot string }{{"ab", "c"}, {"a", "bc"}, {"abc", ""}, {"", "abc"}}
	seen := map[string]bool{}
	for _, p := range pairs {
		s := schema.Source{ExportFromVolume: &schema.ExportFromVolume{VolumeName: p.volume, SnapshotName: p.snapshot, ExportType: "raw"}}
		u := schema.UUID("parrot", digest(t, ""), s)
		if seen[u] {
			t.Errorf("%+v has the uuid of another export", p)
		}
		seen[u] = true
	}
}
