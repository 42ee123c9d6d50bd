package reconcile

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// planEach is Plan without sharing any of the work.
func (c *Cluster) planEach(nodes []Desired) Plan {
	actions, told := []Action{}, map[string]bool{}
	shown := maps.Clone(c.Disks)
	for ref, seen := range shown {
		seen.Copies = maps.Clone(seen.Copies)
		shown[ref] = seen
	}
	for _, d := range nodes {
		if _, silent := c.Silent[d.Node]; !silent {
			for key, r := range d.refusals(c.seen(d, c.Disks)) {
				shown[key.Disk].refuse(key.ID, r)
			}
		}
	}
	for _, d := range nodes {
		for _, a := range d.Plan(c.seen(d, shown)).Actions {
			about := string(a.Kind) + " " + a.Key().ID.String()
			if a.Disk != "" || !told[about] {
				actions = append(actions, a)
			}
			told[about] = told[about] || a.Disk == ""
		}
	}
	p := nodes[0].newPlan(actions)
	p.Suspended = nodes[0].suspensions(c.Now)
	return p
}

// TestSharedPlan plans for random clusters and holds the plan against one for which each
// node looked at every image.
func TestSharedPlan(t *testing.T) {
	t.Parallel()
	kinds := map[Kind]int{}
	for seed := range uint64(*seeds / 30) {
		r := dice{rand.New(rand.NewPCG(seed, 9))}
		d, o := r.situation()
		saved := &Snapshot{}
		for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
			if node == d.Node || r.one(2) {
				d.Node = node
				if err := saved.Add(throughJSON(View{Desired: d, Observed: o}.Status(nil))); err != nil {
					t.Fatal(err)
				}
			}
			_, o = r.situation()
		}
		var nodes []Desired
		for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
			d.Node, d.Verify, d.Cleanup, d.Uploads, d.Removed = node, nil, nil, nil, nil
			nodes = append(nodes, d)
		}
		want := saved.Cluster(d).planEach(nodes)
		if got := saved.Cluster(d).Plan(nodes); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, goldenPlan(got, o.Now), goldenPlan(want, o.Now))
		}
		for _, a := range want.Actions {
			kinds[a.Kind]++
		}
	}
	t.Log(kinds)
}
