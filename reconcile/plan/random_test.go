package plan_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestPlanInvariants plans for random configurations and states, sensible or not, and checks
// each plan against the rules in plantest.
func TestPlanInvariants(t *testing.T) {
	t.Parallel()
	seen := map[model.Op]int{}
	for seed := range uint64(plantest.Seeds()) {
		d, o := plantest.Situation(rand.New(rand.NewPCG(seed, 1)))
		plan := plan.NewRound(d, o).Plan()
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
	for _, op := range []model.Op{model.Download, model.Upload, model.Export, model.Restore, model.Clone, model.Sync, model.Adopt, model.Verify, model.Repair, model.Backup, model.Cleanup, model.Evict, model.Wait, model.Blocked} {
		least := plantest.Seeds() / 150
		if op.IsFirstCopy() && op != model.Download {
			least /= 10
		}
		if op == model.Evict { // whose older generations are often needed, or it is not known whether they are
			least /= 2
		}
		if seen[op] < least {
			t.Errorf("all plans have %d actions of %s, want at least %d: the situations are not varied enough", seen[op], op, least)
		}
	}
}

// checkPure plans again from equal maps with another history, and checks that the plan is the
// same and that planning does not change its arguments.
func checkPure(t *testing.T, d plan.Desired, o plan.Observed, planned plan.Plan) {
	t.Helper()
	before := plantest.Describe(d, o, planned)
	again := d
	again.Config.Images = reinserted(d.Config.Images)
	again.Config.Nodes = reinserted(d.Config.Nodes)
	again.Invalid = reinserted(d.Invalid)
	seen := o
	seen.Disks = reinserted(o.Disks)
	for ref, own := range seen.Disks {
		own.Copies = reinserted(own.Copies)
		seen.Disks[ref] = own
	}
	seen.Failures = reinserted(o.Failures)
	if other := plan.NewRound(again, seen).Plan(); !reflect.DeepEqual(planned, other) {
		t.Errorf("equal arguments give different plans:\n%+v\n%+v", planned, other)
	}
	if a, b := plan.NewRound(d, o).UsageUpdates(), plan.NewRound(again, seen).UsageUpdates(); !reflect.DeepEqual(a, b) {
		t.Errorf("equal arguments give different usage updates:\n%+v\n%+v", a, b)
	}
	if after := plantest.Describe(d, o, planned); after != before {
		t.Errorf("planning changed its arguments:\n%s\n%s", before, after)
	}
}

// reinserted returns an equal map that was filled in the reverse order of its keys.
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

// checkUsageUpdates checks that the usage updates record no time that is earlier than the truth,
// and that none are left when all are written.
func checkUsageUpdates(t *testing.T, d plan.Desired, o plan.Observed) {
	t.Helper()
	updates := plan.NewRound(d, o).UsageUpdates()
	for ref, u := range updates {
		c := o.Disks[ref.Disk].Copies[ref.ID]
		switch {
		case !c.Owned || o.Disks[ref.Disk].Problem != "":
			t.Errorf("an update of a copy that this node must not change: %+v", u)
		case u.InUseRecorded != (plantest.InUse(d, o, ref) != ""):
			t.Errorf("%+v, and its user is %q", u, plantest.InUse(d, o, ref))
		case !u.LastUsed.Equal(c.LastUsed) && !u.LastUsed.Equal(o.Now):
			t.Errorf("the last use of %s was %s, the update has %s", ref, c.LastUsed, u.LastUsed)
		case !u.SurplusSince.IsZero() && !u.SurplusSince.Equal(c.SurplusSince) && !u.SurplusSince.Equal(o.Now):
			t.Errorf("%s is surplus since %s, the update has %s", ref, c.SurplusSince, u.SurplusSince)
		case d.Allowed != schema.Everything && !u.SurplusSince.IsZero() && !u.SurplusSince.Equal(c.SurplusSince):
			t.Errorf("the clean-up interval of %s begins while the configuration is invalid", ref)
		}
	}
	after := withUsage(o, updates)
	for ref, seen := range after.Disks {
		seen.ClockStepped = false
		after.Disks[ref] = seen
	}
	if left := plan.NewRound(d, after).UsageUpdates(); len(left) > 0 {
		t.Errorf("after all updates were written, %+v are left of %+v", left, updates)
	}
	plantest.CheckPlan(t, d, after, plan.NewRound(d, after).Plan())
}

// withUsage returns what is observed after the updates were written.
func withUsage(o plan.Observed, updates map[ident.CopyRef]model.Usage) plan.Observed {
	o.Disks = maps.Clone(o.Disks)
	for ref, u := range updates {
		seen := o.Disks[ref.Disk]
		seen.Copies = maps.Clone(seen.Copies)
		c := seen.Copies[ref.ID]
		c.Usage = u
		seen.Copies[ref.ID] = c
		o.Disks[ref.Disk] = seen
	}
	return o
}
