package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestCleanupTable compares deletions of unused copies with those of Longhorn, from the table of
// its tests (R ready, F failed, IP and P in progress and pending, _ no copy). Each copy is on a
// disk of its own, in order of rank, and the clean-up interval has passed. Longhorn considers
// only the states and deletes the first copies that it finds. Here the rank decides which copies
// are surplus, and a failed or incomplete copy on a desired disk is created again, not deleted.
func TestCleanupTable(t *testing.T) {
	for _, c := range []struct {
		states string
		used   string // u: by a replica
		min    int
		want   string // d deleted, + created, . unchanged
	}{
		{"R R R", "...", 2, "..d"},  // as Longhorn
		{"R R R", "...", 1, ".dd"},  // as Longhorn, which may keep another one
		{"R R R", "..u", 1, ".d."},  // a copy in use stays in addition to the desired one
		{"R R R", "uuu", 1, "..."},  // as Longhorn
		{"P IP R", "...", 1, "+d."}, // Longhorn keeps only R; here the best ranked disk syncs from R before R is deleted
		{"R P IP", "...", 1, ".dd"}, // the round after that: the others are deleted, as by Longhorn
		{"P IP R", "uu.", 1, "+.."}, // Longhorn keeps all
		{"R IP P", ".u.", 1, "..d"}, // as Longhorn
		{"F _ R", "...", 2, "++."},  // Longhorn deletes F; here the first two disks are desired, and R is surplus once both are ready
		{"F _ R", "...", 3, "++."},  // Longhorn keeps all; here the missing copies are created
		{"R _ F", "...", 1, "..d"},  // F is not on a desired disk
		{"R R F", "...", 2, "..d"},  // as above
		{"R _ F", "...", 2, ".+."},  // F stays until two copies are ready
		{"R F F", "...", 3, ".++"},  // nothing is surplus
		{"_ _ R", "...", 1, "+.."},  // the last ready copy is never deleted
		{"F F F", "...", 1, "+.."},  // nor are failed copies without a ready one
	} {
		t.Run(fmt.Sprintf("%s min %d used %s", c.states, c.min, c.used), func(t *testing.T) {
			d, o := cleanupCase(strings.Fields(c.states), c.used, c.min)
			plan := plan.NewRound(d, o).Plan()
			plantest.CheckPlan(t, d, o, plan)
			if got := effects(d, plan); got != c.want {
				t.Errorf("got %s, want %s: %+v", got, c.want, plan.Actions)
			}
		})
	}
}

// cleanupCase returns a node with one disk for each state, in order of rank.
func cleanupCase(states []string, used string, copies int) (plan.Desired, plan.Observed) {
	c := plantest.NewConfig(1, 1)
	image := plantest.NewImage("parrot")
	image.Copies = copies
	c.Images["parrot"] = image
	c.Settings.CleanupWaitInterval, c.Settings.ConcurrentReplenishPerNodeLimit = time.Hour, 5

	node := schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{}}
	for i := range states {
		node.Disks[fmt.Sprintf("disk%d", i+1)] = schema.Disk{AllowScheduling: true}
	}
	c.Nodes = map[string]schema.Node{"node1": node}
	o := plan.Observed{Now: plantest.Now, Disks: map[ident.DiskRef]model.Disk{}}
	for i, ref := range plantest.RankedDisks(c, image) {
		o.Disks[ref] = model.Disk{Space: model.Space{Free: 1 << 40}, Copies: map[ident.ID]model.Copy{}}
		state := map[string]model.State{"R": model.Ready, "F": model.Failed, "P": model.Pending, "IP": model.Pending}[states[i]]
		if state == "" {
			continue
		}
		found := model.Copy{ID: image.ID, State: state, Owned: true, HasCfg: true, Usage: model.Usage{SurplusSince: plantest.Now.Add(-99 * time.Hour)}}
		if state == model.Ready {
			found.SHA512, found.ManifestDigest = image.Checksum, plantest.Digest(ident.SHA256, "chunks")
		}
		if used[i] == 'u' {
			found.UsedBy = "used by replica vol-1"
		}
		o.Disks[ref].Copies[image.ID] = found
	}
	return plan.Desired{Node: "node1", Config: c, Allowed: schema.Everything, Removed: plan.AlwaysConfirmed}, o
}

// effects returns what the plan does on each disk, in order of rank, as the table writes it.
func effects(d plan.Desired, plan plan.Plan) string {
	refs := plantest.RankedDisks(d.Config, d.Config.Images["parrot"])
	out := []byte(strings.Repeat(".", len(refs)))
	for i, ref := range refs {
		for _, a := range plan.Actions {
			switch {
			case a.CopyRef().Disk != ref:
			case a.Op.Deletes():
				out[i] = 'd'
			case !a.Idle():
				out[i] = '+'
			}
		}
	}
	return string(out)
}
