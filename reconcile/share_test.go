package reconcile

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// planEach is Plan without sharing any of the work.
func planEach(c *plan.Cluster, nodes []plan.Desired) plan.Plan {
	actions, told := []plan.Action{}, map[string]bool{}
	shown := maps.Clone(c.Disks)
	for ref, seen := range shown {
		seen.Copies = maps.Clone(seen.Copies)
		shown[ref] = seen
	}
	for _, d := range nodes {
		if _, silent := c.Unreachable[d.Node]; !silent {
			for key, r := range d.Rejections(c.ObserveFrom(d, c.Disks)) {
				shown[key.Disk].AddRejection(key.ID, r)
			}
		}
	}
	for _, d := range nodes {
		for _, a := range d.Plan(c.ObserveFrom(d, shown)).Actions {
			about := string(a.Op) + " " + a.CopyRef().ID.String()
			if a.Disk != "" || !told[about] {
				actions = append(actions, a)
			}
			told[about] = told[about] || a.Disk == ""
		}
	}
	p := nodes[0].NewPlan(actions)
	p.Suspended = nodes[0].Suspensions(c.Now)
	return p
}

// TestSharedPlan plans for random clusters and holds the plan against one for which each
// node looked at every image.
func TestSharedPlan(t *testing.T) {
	t.Parallel()
	kinds := map[plan.Op]int{}
	for seed := range uint64(*seeds / 30) {
		r := dice{rand.New(rand.NewPCG(seed, 9))}
		d, o := r.situation()
		saved := &status.SavedCluster{}
		for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
			if node == d.Node || r.one(2) {
				d.Node = node
				if err := saved.Add(throughJSON(status.View{Desired: d, Observed: o}.Status(nil))); err != nil {
					t.Fatal(err)
				}
			}
			_, o = r.situation()
		}
		var nodes []plan.Desired
		for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
			d.Node, d.Verify, d.Cleanup, d.Uploads, d.Removed = node, nil, nil, nil, nil
			nodes = append(nodes, d)
		}
		want := planEach(saved.Cluster(d), nodes)
		if got := saved.Cluster(d).Plan(nodes); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, goldenPlan(got, o.Now), goldenPlan(want, o.Now))
		}
		for _, a := range want.Actions {
			kinds[a.Op]++
		}
	}
	t.Log(kinds)
}
