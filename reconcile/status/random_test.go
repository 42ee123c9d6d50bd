package status_test

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// A plan from a saved status must be the plan from the state that the status describes. This
// plans for random situations, and again from the status of each.
func TestStatusIsComplete(t *testing.T) {
	t.Parallel()
	for seed := range uint64(plantest.Seeds() / 3) {
		d, o := plantest.Situation(rand.New(rand.NewPCG(seed, 2)))
		for key, job := range o.Jobs { // a status has no more of a job
			o.Jobs[key] = plan.NewJob(job.Action.Op, key)
		}
		want := plan.NewRound(d, o).Plan()
		decoded, err := status.Decode((&status.View{Desired: d, Observed: o, Plan: want}).Status(nil))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got := plan.NewRound(d, decoded).Plan(); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: the plan is\n%+v\nand from the status\n%+v\n%s", seed, want, got, plantest.Describe(d, o, want))
		}
		if want, got := plan.NewRound(d, o).UsageUpdates(), plan.NewRound(d, decoded).UsageUpdates(); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: the usage updates are\n%+v\nand from the status\n%+v", seed, want, got)
		}
	}
}
