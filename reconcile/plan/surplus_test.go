package plan_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestCleanupTable is the original's table of what goes when copies are not used
// (R ready, F failed, IP and P on their way, "" nothing there), each on a disk of
// its own in the order of rank, long after the interval. The original looks at the
// states alone, and lets go what it finds first; here the rank decides which
// copies are surplus, and a failed or unfinished one on a disk that should have a
// copy is made anew and never dropped.
func TestCleanupTable(t *testing.T) {
	for _, c := range []struct {
		states string
		used   string // u: by a replica
		min    int
		want   string // d dropped, + made, . left alone
	}{
		{"R R R", "...", 2, "..d"},  // as the original
		{"R R R", "...", 1, ".dd"},  // as the original, but for which
		{"R R R", "..u", 1, ".d."},  // a used copy stays beside what is wanted
		{"R R R", "uuu", 1, "..."},  // as the original
		{"P IP R", "...", 1, "+d."}, // the original keeps R alone: ours makes the first in rank from it before R goes
		{"R P IP", "...", 1, ".dd"}, // then what is left of the others goes, as in the original
		{"P IP R", "uu.", 1, "+.."}, // as the original, which keeps all
		{"R IP P", ".u.", 1, "..d"}, // the original drops P too
		{"F _ R", "...", 2, "++."},  // the original drops F: ours wants the first two in rank, R is surplus once both are ready
		{"F _ R", "...", 3, "++."},  // the original keeps all: ours makes what is missing
		{"R _ F", "...", 1, "..d"},  // F is on a disk that needs no copy
		{"R R F", "...", 2, "..d"},  // likewise
		{"R _ F", "...", 2, ".+."},  // F stays until there are two ready
		{"R F F", "...", 3, ".++"},  // nothing is surplus
		{"_ _ R", "...", 1, "+.."},  // the last ready one never goes
		{"F F F", "...", 1, "+.."},  // nor does what may be all there is
	} {
		t.Run(fmt.Sprintf("%s min %d used %s", c.states, c.min, c.used), func(t *testing.T) {
			d, o := tableCase(strings.Fields(c.states), c.used, c.min)
			plan := d.Plan(o)
			plantest.CheckPlan(t, d, o, plan)
			if got := effects(d, plan); got != c.want {
				t.Errorf("got %s, want %s: %+v", got, c.want, plan.Actions)
			}
		})
	}
}

func tableCase(states []string, used string, copies int) (plan.Desired, plan.Observed) {
	c := plantest.NewConfig(1, 1)
	image := plantest.NewImage("parrot")
	image.Copies = copies
	c.Images["parrot"] = image
	c.Settings.CleanupWaitInterval, c.Settings.ConcurrentReplenishPerNodeLimit = time.Hour, 5

	one := schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{}}
	for i := range states {
		one.Disks[fmt.Sprintf("disk%d", i+1)] = schema.Disk{AllowScheduling: true}
	}
	c.Nodes = map[string]schema.Node{"node1": one}
	o := plan.Observed{Now: plantest.Now, Disks: map[schema.DiskRef]plan.Disk{}}
	for i, ref := range plantest.RankedDisks(c, image) {
		o.Disks[ref] = plan.Disk{Space: disk.Space{Free: 1 << 40}, Copies: map[disk.ID]plan.Copy{}}
		state := map[string]disk.State{"R": disk.Ready, "F": disk.Failed, "P": disk.Pending, "IP": disk.Pending}[states[i]]
		if state == "" {
			continue
		}
		one := plan.Copy{Copy: disk.Copy{ID: image.ID, State: state, Owned: true, HasCfg: true, SurplusSince: plantest.Now.Add(-99 * time.Hour)}}
		if state == disk.Ready {
			one.SHA512, one.ManifestDigest = image.Checksum, plantest.Digest(disk.SHA256, "chunks")
		}
		if used[i] == 'u' {
			one.UsedBy = "used by replica vol-1"
		}
		o.Disks[ref].Copies[image.ID] = one
	}
	return plan.Desired{Node: "node1", Config: c, Allowed: schema.Everything}, o
}

// effects is what the plan does on each disk, in the order of rank.
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
