package plan_test

import (
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// A disk that an image names and that has no copy counts as missing, whether the disk can take the copy or
// not, and is counted once if it is also ranked.
func TestNamedDiskWithoutACopyIsMissing(t *testing.T) {
	disk := func(name string) ident.DiskRef { return ident.DiskRef{Node: "node1", Disk: name} }
	for name, want := range map[string]struct {
		desired int
		without []ident.DiskRef
	}{
		"copies-named-disk":         {3, []ident.DiskRef{disk("disk2"), disk("disk3")}},
		"copies-named-disk-full":    {2, []ident.DiskRef{disk("disk2")}},
		"copies-named-disk-missing": {2, []ident.DiskRef{disk("disk1"), disk("disk2")}},
	} {
		a, err := txtar.ParseFile(filepath.Join("testdata", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		d, o := goldenCase(t, a)
		got := plan.NewRound(d, o).Placements()[d.Config.Images["parrot"].ID]
		if got.Desired() != want.desired || !slices.Equal(got.NamedWithout, want.without) {
			t.Errorf("%s: %d desired, %v without a copy; want %d, %v", name, got.Desired(), got.NamedWithout, want.desired, want.without)
		}
	}
}
