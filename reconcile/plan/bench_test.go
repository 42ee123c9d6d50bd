package plan_test

import (
	"fmt"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// BenchmarkPlanFleet plans for one node of 250.
func BenchmarkPlanFleet(b *testing.B) {
	for _, images := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("%d-images-1000-disks", images), func(b *testing.B) {
			d, o := plantest.LargeCluster(images)
			b.ReportAllocs()
			for b.Loop() {
				plan.NewRound(d, o).Plan()
			}
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	for name, state := range plantest.LargeNodeStates {
		for _, images := range []int{1_000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", name, images), func(b *testing.B) {
				d, o := state(images)
				b.ReportAllocs()
				for b.Loop() {
					plan.NewRound(d, o).Plan()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*images), "ns/image")
			})
		}
	}
}

func BenchmarkUsageUpdates(b *testing.B) {
	d, o := plantest.LargeNodeStates["ready"](10_000)
	b.ReportAllocs()
	for b.Loop() {
		plan.NewRound(d, o).UsageUpdates()
	}
}

// TestPlanAllocations limits the allocations for each image, so that the cost of a plan grows in
// proportion to the number of images.
func TestPlanAllocations(t *testing.T) {
	const most = 60 // for copies, actions and reasons; comparing each image with all others takes thousands
	for name, state := range plantest.LargeNodeStates {
		for _, images := range []int{250, race.Fewer(4_000, 20)} {
			d, o := state(images)
			for what, do := range map[string]func(){"Plan": func() { plan.NewRound(d, o).Plan() }, "UsageUpdates": func() { plan.NewRound(d, o).UsageUpdates() }} {
				if each := testing.AllocsPerRun(1, do) / float64(images); each > most {
					t.Errorf("%s of %d images (%s) makes %.1f allocations for each image, want at most %d", what, images, name, each, most)
				}
			}
		}
	}
}
