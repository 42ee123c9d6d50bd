package reconcile

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// crowds are states of so many images on two disks, each hard in its own way.
var crowds = map[string]func(images int) (plan.Desired, plan.Observed){
	"ready": func(n int) (plan.Desired, plan.Observed) { return crowd(n, disk.Ready, true) },
	// Every image looks for the same bytes under other names.
	"missing": func(n int) (plan.Desired, plan.Observed) { return crowd(n, disk.Pending, true) },
	// Nothing is declared any more.
	"vanished": func(n int) (plan.Desired, plan.Observed) { return crowd(n, disk.Ready, false) },
}

func crowd(images int, state disk.State, declared bool) (plan.Desired, plan.Observed) {
	c := grid(1, 2)
	c.Settings.CleanupWaitInterval = time.Hour
	c.Settings.PruneLimit = schema.PrunePercent(50)
	o := plan.Observed{Now: goldenNow, Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{}}
	refs := []schema.DiskRef{{Node: "node1", Disk: "disk1"}, {Node: "node1", Disk: "disk2"}}
	for _, ref := range refs {
		o.Disks[ref] = plan.Disk{Space: disk.Space{Free: 1 << 50}, Copies: map[disk.ID]plan.Copy{}}
	}
	for i := range images {
		name := fmt.Sprintf("image%d", i)
		image := named(name)
		image.Checksum = digestOf(disk.SHA512, name)
		if declared {
			c.Images[name] = image
		}
		for _, ref := range refs {
			o.Disks[ref].Copies[image.ID] = plan.Copy{Copy: disk.Copy{
				ID: image.ID, State: state, Owned: true, HasCfg: true, Size: 1 << 30, RealSize: 1 << 30, SHA512: image.Checksum,
			}}
		}
	}
	return plan.Desired{Node: "node1", Config: c, Allowed: schema.Everything}, o
}

func BenchmarkPlan(b *testing.B) {
	for name, crowd := range crowds {
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

func BenchmarkMarks(b *testing.B) {
	d, o := crowds["ready"](10_000)
	b.ReportAllocs()
	for b.Loop() {
		d.UsageUpdates(o)
	}
}

func BenchmarkStatus(b *testing.B) {
	d, o := crowds["ready"](10_000)
	v := status.View{Desired: d, Observed: o, Plan: d.Plan(o)}
	b.ReportAllocs()
	for b.Loop() {
		v.Status(nil)
	}
}

// TestPlanAllocations bounds what an image costs, however many there are.
func TestPlanAllocations(t *testing.T) {
	const most = 60 // a copy, an action and a reason are some; a look at all others would be thousands
	for name, crowd := range crowds {
		for _, images := range []int{250, race.Fewer(4_000, 20)} {
			d, o := crowd(images)
			v := status.View{Desired: d, Observed: o, Plan: d.Plan(o)}
			for what, do := range map[string]func(){"Plan": func() { d.Plan(o) }, "Marks": func() { d.UsageUpdates(o) }, "Status": func() { v.Status(nil) }} {
				if each := testing.AllocsPerRun(1, do) / float64(images); each > most {
					t.Errorf("%s of %d images (%s) makes %.1f allocations an image, at most %d are expected", what, images, name, each, most)
				}
			}
		}
	}
}
