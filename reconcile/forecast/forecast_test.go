package forecast

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestForecastMatchesPlan compares the sums of a forecast with the actions of the plan, for
// random situations.
func TestForecastMatchesPlan(t *testing.T) {
	t.Parallel()
	for seed := range uint64(plantest.Seeds() / 30) {
		d, o := plantest.Situation(rand.New(rand.NewPCG(seed, 5)))
		p := plan.NewRound(d, o).Plan()
		d.Node, d.OnlyDisks = "", nil
		f := build(d, o, p)
		if again := build(d, o, p); !reflect.DeepEqual(f, again) {
			t.Fatalf("seed %d: equal arguments give different forecasts", seed)
		}
		created, deleted, freed := 0, 0, int64(0)
		for _, a := range p.Actions {
			switch op, follows := a.Eventually(); {
			case !follows:
			case op.CreatesCopy():
				created++
			case op.Deletes():
				deleted++
				freed += max(0, o.Disks[a.CopyRef().Disk].Copies[a.CopyRef().ID].RealSize)
			}
		}
		traffic, risk := f.Traffic, f.Risk
		if n := traffic.Upstreams.Transfers + traffic.Peers.Transfers + traffic.Local.Transfers; n != created {
			t.Errorf("seed %d: %d transfers, %d copies are created", seed, n, created)
		}
		if risk.Removes.Copies+risk.RemovesLater.Copies+risk.Evicts.Copies > deleted || risk.Removes.Bytes+risk.RemovesLater.Bytes+risk.Evicts.Bytes > freed {
			t.Errorf("seed %d: %+v, the plan deletes %d copies of %d bytes", seed, risk, deleted, freed)
		}
		if risk.Blocked != p.Summary.Counts[model.Blocked] {
			t.Errorf("seed %d: %d blocked actions, the plan has %d", seed, risk.Blocked, p.Summary.Counts[model.Blocked])
		}
		for _, space := range f.Disks {
			if space.FreeAfter != space.FreeBefore-space.Created+space.Deleted || space.FreeLowest > space.FreeBefore || space.Created < 0 || space.Deleted < 0 {
				t.Errorf("seed %d: %+v", seed, space)
			}
		}
		for _, image := range f.Images {
			if image.After < 0 || image.Declared && image.After < min(image.Ready, image.Desired) && d.Allowed != schema.Everything {
				t.Errorf("seed %d: %+v", seed, image)
			}
		}
		if t.Failed() {
			t.Fatal(plantest.Describe(d, o, p))
		}
	}
}

// TestCompareIsConsistentInBothDirections compares pairs of random configurations in both directions: what one direction
// adds, the other removes, and images and nodes agree on it.
func TestCompareIsConsistentInBothDirections(t *testing.T) {
	t.Parallel()
	for seed := range uint64(plantest.Seeds() / 30) {
		r := rand.New(rand.NewPCG(seed, 6))
		before, after := plantest.RandomConfig(r), plantest.RandomConfig(r)
		if d := Compare(before, before); !d.Empty() {
			t.Fatalf("seed %d: a configuration differs from itself: %+v", seed, d)
		}
		forward, back := Compare(before, after), Compare(after, before)
		if len(forward.Images) != len(back.Images) || len(forward.Nodes) != len(back.Nodes) || forward.Settings != back.Settings {
			t.Fatalf("seed %d: forward %+v, back %+v", seed, forward, back)
		}
		unmatched := map[string]int{} // copies that images add minus those that nodes add, by image
		for i, image := range forward.Images {
			if other := back.Images[i]; !reflect.DeepEqual(image.Added, other.Removed) && len(image.Added) == 1 || image.Image != other.Image {
				t.Errorf("seed %d: forward %+v, back %+v", seed, image, other)
			}
			for _, ref := range image.Added {
				if slices.Contains(image.Before, ref) || !slices.Contains(image.After, ref) {
					t.Errorf("seed %d: %+v", seed, image)
				}
				unmatched[image.Image]++
			}
		}
		for _, node := range forward.Nodes {
			for _, name := range node.Added {
				unmatched[name]--
			}
		}
		for name, n := range unmatched {
			if n != 0 {
				t.Errorf("seed %d: image %s is added to %d more disks than its nodes say", seed, name, n)
			}
		}
	}
}
