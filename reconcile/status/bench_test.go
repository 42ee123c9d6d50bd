package status_test

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// TestStatusAllocations limits the allocations for each image, so that the cost of a status
// grows in proportion to the number of images.
func TestStatusAllocations(t *testing.T) {
	const most = 60
	for name, state := range plantest.LargeNodeStates {
		for _, images := range []int{250, race.Fewer(4_000, 20)} {
			d, o := state(images)
			v := status.View{Desired: d, Observed: o, Plan: plan.NewRound(d, o).Plan()}
			if each := testing.AllocsPerRun(1, func() { v.Status(nil) }) / float64(images); each > most {
				t.Errorf("the status of %d images (%s) makes %.1f allocations for each image, want at most %d", images, name, each, most)
			}
		}
	}
}

func BenchmarkStatus(b *testing.B) {
	d, o := plantest.LargeNodeStates["ready"](10_000)
	v := status.View{Desired: d, Observed: o, Plan: plan.NewRound(d, o).Plan()}
	b.ReportAllocs()
	for b.Loop() {
		v.Status(nil)
	}
}

// BenchmarkStatusFleet makes the status of a large cluster that lacks a third of its copies,
// first without and then with cached placements. Its plan is there for comparison.
func BenchmarkStatusFleet(b *testing.B) {
	d, o := plantest.LargeCluster(1_000)
	v := status.View{Desired: d, Observed: o, Plan: plan.NewRound(d, o).Plan()}
	b.Run("status", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Status(nil)
		}
	})
	v.Placements = &status.PlacementCache{}
	b.Run("status again", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			v.Status(nil)
		}
	})
	b.Run("plan", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			plan.NewRound(d, o).Plan()
		}
	})
}
