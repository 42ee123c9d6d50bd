package plan_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestPlanInvariants plans for random configurations and states, sensible or not, and
// holds every plan against what a manager never does.
func TestPlanInvariants(t *testing.T) {
	t.Parallel()
	seen := map[plan.Op]int{}
	for seed := range uint64(plantest.Seeds()) {
		d, o := plantest.Situation(rand.New(rand.NewPCG(seed, 1)))
		plan := d.Plan(o)
		plantest.CheckPlan(t, d, o, plan)
		if seed%10 == 0 {
			checkPure(t, d, o, plan)
		}
		checkUsageUpdates(t, d, o)
		for _, a := range plan.Actions {
			seen[a.Op]++
		}
		if t.Failed() {
			t.Fatalf("seed %d\n%s", seed, plantest.Describe(d, o, plan))
		}
	}
	for _, kind := range []plan.Op{plan.Download, plan.Upload, plan.Export, plan.Restore, plan.Clone, plan.Sync, plan.Adopt, plan.Verify, plan.Repair, plan.Backup, plan.Cleanup, plan.Evict, plan.Wait, plan.Blocked} {
		least := plantest.Seeds() / 150
		if kind.IsFirstCopy() && kind != plan.Download {
			least /= 10
		}
		if seen[kind] < least {
			t.Errorf("%d times %s in all plans: the situations do not show enough", seen[kind], kind)
		}
	}
}

// checkPure plans again from the same values in maps of another order and with
// another history, and sees that planning leaves its arguments alone.
func checkPure(t *testing.T, d plan.Desired, o plan.Observed, plan plan.Plan) {
	t.Helper()
	before := plantest.Describe(d, o, plan)
	again := d
	again.Config.Images = reinserted(d.Config.Images)
	again.Config.Nodes = reinserted(d.Config.Nodes)
	again.Invalid = reinserted(d.Invalid)
	seen := o
	seen.Disks = reinserted(o.Disks)
	for ref, one := range seen.Disks {
		one.Copies = reinserted(one.Copies)
		seen.Disks[ref] = one
	}
	seen.Failures = reinserted(o.Failures)
	if other := again.Plan(seen); !reflect.DeepEqual(plan, other) {
		t.Errorf("two plans from equal values:\n%+v\n%+v", plan, other)
	}
	if a, b := d.UsageUpdates(o), again.UsageUpdates(seen); !reflect.DeepEqual(a, b) {
		t.Errorf("two lists of marks from equal values:\n%+v\n%+v", a, b)
	}
	if after := plantest.Describe(d, o, plan); after != before {
		t.Errorf("planning changed its arguments:\n%s\n%s", before, after)
	}
}

// reinserted is the map filled in the opposite order of its keys.
func reinserted[K comparable, V any](m map[K]V) map[K]V {
	if m == nil {
		return nil
	}
	keys := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return cmp.Compare(fmt.Sprint(b), fmt.Sprint(a)) })
	out := make(map[K]V)
	for _, k := range keys {
		out[k] = m[k]
	}
	return out
}

// checkUsageUpdates holds the marks against what they are for: nothing looks older after
// them than it is, and once they are written there are none left to write.
func checkUsageUpdates(t *testing.T, d plan.Desired, o plan.Observed) {
	t.Helper()
	marks := d.UsageUpdates(o)
	for _, m := range marks {
		c := o.Disks[m.Copy.Disk].Copies[m.Copy.ID]
		switch {
		case !c.Owned || o.Disks[m.Copy.Disk].Problem != "":
			t.Errorf("mark on what is not to be touched: %+v", m)
		case m.InUse != (c.UsedBy != ""):
			t.Errorf("%+v, and %q uses it", m, c.UsedBy)
		case !m.LastUsed.Equal(c.LastUsed) && !m.LastUsed.Equal(o.Now):
			t.Errorf("last use of %s was %s and is marked %s", m.Copy, c.LastUsed, m.LastUsed)
		case !m.SurplusSince.IsZero() && !m.SurplusSince.Equal(c.SurplusSince) && !m.SurplusSince.Equal(o.Now):
			t.Errorf("%s is unwanted since %s and is marked %s", m.Copy, c.SurplusSince, m.SurplusSince)
		case d.Allowed != schema.Everything && !m.SurplusSince.IsZero() && !m.SurplusSince.Equal(c.SurplusSince):
			t.Errorf("the clock of %s begins while the configuration is broken", m.Copy)
		}
	}
	noted := withUsage(o, marks)
	for ref, seen := range noted.Disks {
		seen.ClockStepped = false
		noted.Disks[ref] = seen
	}
	if left := d.UsageUpdates(noted); len(left) > 0 {
		t.Errorf("marks are left when all are written: %+v of %+v", left, marks)
	}
	plantest.CheckPlan(t, d, noted, d.Plan(noted))
}

// withUsage is what a look sees when the marks are written.
func withUsage(o plan.Observed, marks []plan.Usage) plan.Observed {
	o.Disks = maps.Clone(o.Disks)
	for _, m := range marks {
		one := o.Disks[m.Copy.Disk]
		one.Copies = maps.Clone(one.Copies)
		c := one.Copies[m.Copy.ID]
		c.InUseRecorded, c.LastUsed, c.SurplusSince, c.ClockNode = m.InUse, m.LastUsed, m.SurplusSince, m.By
		one.Copies[m.Copy.ID] = c
		o.Disks[m.Copy.Disk] = one
	}
	return o
}
