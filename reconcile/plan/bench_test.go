package plan_test

import (
	"fmt"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// BenchmarkPlanFleet is what one node of 250 needs to plan for itself.
func BenchmarkPlanFleet(b *testing.B) {
	for _, images := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("%d-images-1000-disks", images), func(b *testing.B) {
			d, o := plantest.LargeCluster(images)
			b.ReportAllocs()
			for b.Loop() {
				d.Plan(o)
			}
		})
		b.Run(fmt.Sprintf("%d-images-1000-disks-again", images), func(b *testing.B) {
			d, o := plantest.LargeCluster(images)
			d.RankCache = plan.NewRankCache(d.Config.Nodes, plan.MaxCachedRanks)
			d.Plan(o)
			b.ReportAllocs()
			for b.Loop() {
				d.Plan(o)
			}
		})
	}
}

func BenchmarkPlan(b *testing.B) {
	for name, crowd := range plantest.LargeNodeStates {
		for _, images := range []int{1_000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", name, images), func(b *testing.B) {
				d, o := crowd(images)
				b.ReportAllocs()
				for b.Loop() {
					d.Plan(o)
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
		d.UsageUpdates(o)
	}
}

// TestPlanAllocations bounds what an image costs, however many there are.
func TestPlanAllocations(t *testing.T) {
	const most = 60 // a copy, an action and a reason are some; a look at all others would be thousands
	for name, crowd := range plantest.LargeNodeStates {
		for _, images := range []int{250, race.Fewer(4_000, 20)} {
			d, o := crowd(images)
			for what, do := range map[string]func(){"Plan": func() { d.Plan(o) }, "UsageUpdates": func() { d.UsageUpdates(o) }} {
				if each := testing.AllocsPerRun(1, do) / float64(images); each > most {
					t.Errorf("%s of %d images (%s) makes %.1f allocations an image, at most %d are expected", what, images, name, each, most)
				}
			}
		}
	}
}
