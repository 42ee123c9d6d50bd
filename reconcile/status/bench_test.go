package status_test

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func BenchmarkStatus(b *testing.B) {
	d, o := plantest.LargeNodeStates["ready"](10_000)
	v := status.View{Desired: d, Observed: o, Plan: d.Plan(o)}
	b.ReportAllocs()
	for b.Loop() {
		v.Status(nil)
	}
}

// TestStatusAllocations bounds what an image costs, however many there are.
func TestStatusAllocations(t *testing.T) {
	const most = 60
	for name, crowd := range plantest.LargeNodeStates {
		for _, images := range []int{250, race.Fewer(4_000, 20)} {
			d, o := crowd(images)
			v := status.View{Desired: d, Observed: o, Plan: d.Plan(o)}
			if each := testing.AllocsPerRun(1, func() { v.Status(nil) }) / float64(images); each > most {
				t.Errorf("the status of %d images (%s) makes %.1f allocations an image, at most %d are expected", images, name, each, most)
			}
		}
	}
}

// BenchmarkStatusFleet is what telling of a large cluster takes, a third of whose
// copies are yet to be made, the first time and later, beside planning.
func BenchmarkStatusFleet(b *testing.B) {
	d, o := plantest.LargeCluster(1_000)
	v := status.View{Desired: d, Observed: o, Plan: d.Plan(o)}
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
			d.Plan(o)
		}
	})
}
