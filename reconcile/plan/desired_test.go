package plan_test

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Two processes that each look after one disk of a node have to agree on where a
// copy belongs: picking disks must not change the ranking.
func TestOnlyDisksKeepTheRanking(t *testing.T) {
	const config = `
nodes:
  node1:
    disks:
      a: {path: /mnt/a}
      b: {path: /mnt/b}
images:
  parrot: {source: {download: {url: "https://example.com/parrot.raw"}}}
`
	var downloads []schema.DiskRef
	for _, picked := range []string{"a", "/mnt/b"} {
		d := plantest.Load(t, config, picked)
		o := plan.Observed{Now: plan.EarliestTime.AddDate(0, 1, 0), Disks: map[schema.DiskRef]plan.Disk{}}
		for name := range d.OnlyDisks {
			o.Disks[schema.DiskRef{Node: "node1", Disk: name}] = plan.Disk{Space: disk.Space{Free: 50 << 30}}
		}
		for _, a := range d.Plan(o).Actions {
			if a.Op == plan.Download {
				downloads = append(downloads, a.CopyRef().Disk)
			}
		}
	}
	if len(downloads) != 1 {
		t.Errorf("downloads are planned on %v, want one", downloads)
	}
}
