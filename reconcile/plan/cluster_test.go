package plan_test

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// planEach returns what Cluster.Plan must return. Here each node plans every image.
func planEach(c *plan.Cluster, nodes []plan.Desired) plan.Plan {
	actions, reported := []plan.Action{}, map[string]bool{}
	published := *c
	published.Disks = maps.Clone(c.Disks)
	for ref, seen := range published.Disks {
		seen.Copies = maps.Clone(seen.Copies)
		published.Disks[ref] = seen
	}
	for _, d := range nodes {
		if _, unreachable := c.Unreachable[d.Node]; unreachable {
			continue
		}
		for key, r := range plan.NewRound(d, c.Observe(d)).Rejections() {
			rejected := published.Disks[key.Disk].Copies[key.ID]
			if rejected.State == "" {
				rejected = model.Copy{ID: key.ID, State: model.Pending}
			}
			rejected.Rejection, rejected.RejectionTemporary = r.Text, r.Severity == plan.Temporary
			published.Disks[key.Disk].Copies[key.ID] = rejected
		}
	}
	for _, d := range nodes {
		o := published.Observe(d)
		o.Disks = maps.Clone(o.Disks)
		for ref, seen := range o.Disks {
			if ref.Node == d.Node { // a node observes its own disks without what it publishes
				seen.Copies = c.Disks[ref].Copies
				o.Disks[ref] = seen
			}
		}
		for _, a := range plan.NewRound(d, o).Plan().Actions {
			// All nodes report an action that concerns no disk: it is listed once.
			key := string(a.Op) + " " + a.CopyRef().ID.String()
			if a.Disk != "" || !reported[key] {
				actions = append(actions, a)
			}
			reported[key] = reported[key] || a.Disk == ""
		}
	}
	p := plan.NewPlan(actions, nodes[0].Digest, nodes[0].Revision)
	if nodes[0].Allowed != schema.ObserveOnly { // such a plan is empty
		p.Suspended = plan.Suspensions(nodes[0].Config, c.Now)
	}
	return p
}

// randomCluster returns a cluster of the nodes that d declares, each in a random situation of
// its own; that of d.Node is o. Half of the other nodes are unreachable.
func randomCluster(r *rand.Rand, d plan.Desired, o plan.Observed) *plan.Cluster {
	c := &plan.Cluster{
		Now: o.Now, Disks: map[ident.DiskRef]model.Disk{}, Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}, Jobs: map[ident.CopyRef]plan.Job{}, BeingRead: map[ident.CopyRef]bool{},
		Unreachable: map[string]model.Peer{}, CannotPrepare: map[string]map[ident.ID]string{}, BackedUp: map[ident.CopyRef]bool{},
	}
	for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
		if node != d.Node && r.IntN(2) == 0 {
			c.Unreachable[node] = model.Peer{Queried: true, Problem: "no answer", UnreachableSince: o.Now.Add(-time.Minute)}
		}
		for name := range d.Config.Nodes[node].Disks {
			ref := ident.DiskRef{Node: node, Disk: name}
			seen, known := o.Disks[ref]
			if !known {
				continue
			}
			c.Disks[ref] = seen
			for id := range seen.Copies {
				if o.BackedUp[id] {
					c.BackedUp[ident.CopyRef{Disk: ref, ID: id}] = true
				}
			}
		}
		for key, f := range o.Failures {
			if key.Disk.Node == node {
				c.Failures[key] = f
			}
		}
		for key := range o.Running {
			if key.Disk.Node == node {
				c.Running[key] = true
			}
		}
		for key, job := range o.Jobs {
			if job.Action.Node = node; key.Disk.Node == d.Node && d.Allowed != schema.ObserveOnly { // the plan of the cluster is empty then
				c.Jobs[job.Action.CopyRef()], c.Running[job.Action.CopyRef()] = job, true
			}
		}
		c.CannotPrepare[node] = o.CannotPrepare
		_, o = plantest.Situation(r)
	}
	return c
}

// Cluster.Plan considers an image only on nodes that it can concern. For random clusters its
// plan must be that of nodes that consider every image.
func TestClusterPlanEqualsNodePlans(t *testing.T) {
	t.Parallel()
	ops := map[model.Op]int{}
	for seed := range uint64(plantest.Seeds() / 30) {
		r := rand.New(rand.NewPCG(seed, 9))
		d, o := plantest.Situation(r)
		c := randomCluster(r, d, o)
		var nodes []plan.Desired
		for _, node := range slices.Sorted(maps.Keys(d.Config.Nodes)) {
			d.Node, d.Verify, d.Cleanup, d.Uploads, d.Removed = node, nil, nil, nil, plan.AlwaysConfirmed
			nodes = append(nodes, d)
		}
		want := planEach(c, nodes)
		if got := c.Plan(nodes); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\n%s\nwant\n%s", seed, goldenPlan(got, o.Now), goldenPlan(want, o.Now))
		}
		for _, a := range want.Actions {
			ops[a.Op]++
		}
	}
	t.Log(ops)
}
