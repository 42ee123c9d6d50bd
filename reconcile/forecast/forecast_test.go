package forecast_test

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestForecastMatchesPlan plans for random clusters and holds what is told of a fleet against the
// plan that it is told of.
func TestForecastMatchesPlan(t *testing.T) {
	t.Parallel()
	for seed := range uint64(plantest.Seeds() / 30) {
		d, o := plantest.Situation(rand.New(rand.NewPCG(seed, 5)))
		p := d.Plan(o)
		d.Node, d.OnlyDisks = "", nil
		f := forecast.Build(d, o, p)
		if again := forecast.Build(d, o, p); !reflect.DeepEqual(f, again) {
			t.Fatalf("seed %d: two forecasts from equal values differ", seed)
		}
		comes, drops, gone := 0, 0, int64(0)
		for _, a := range p.Actions {
			switch kind := a.Eventually(); {
			case kind.CreatesCopy():
				comes++
			case kind.Deletes():
				drops++
				gone += max(0, o.Disks[a.CopyRef().Disk].Copies[a.CopyRef().ID].RealSize)
			}
		}
		traffic, r := f.Traffic, f.Risk
		if n := traffic.Origins.Transfers + traffic.Peers.Transfers + traffic.Local.Transfers; n != comes {
			t.Errorf("seed %d: %d transfers of %d", seed, n, comes)
		}
		if r.Removes.Copies+r.Later.Copies+r.Evicts.Copies > drops || r.Removes.Bytes+r.Later.Bytes+r.Evicts.Bytes > gone {
			t.Errorf("seed %d: %+v of %d deletions of %d bytes", seed, r, drops, gone)
		}
		if r.Blocked != p.Summary.Counts[plan.Blocked] {
			t.Errorf("seed %d: %d blocked of %d", seed, r.Blocked, p.Summary.Counts[plan.Blocked])
		}
		for _, one := range f.Disks {
			if one.After != one.Before-one.Comes+one.Goes || one.Lowest > one.Before || one.Comes < 0 || one.Goes < 0 {
				t.Errorf("seed %d: %+v", seed, one)
			}
		}
		for _, one := range f.Images {
			if one.After < 0 || one.Declared && one.After < min(one.Ready, one.Desired) && d.Allowed != schema.Everything {
				t.Errorf("seed %d: %+v", seed, one)
			}
		}
		if t.Failed() {
			t.Fatal(plantest.Describe(d, o, p))
		}
	}
}

// TestCompare holds what is said of two random configurations against the placement that
// follows from each.
func TestCompare(t *testing.T) {
	t.Parallel()
	for seed := range uint64(plantest.Seeds() / 30) {
		r := rand.New(rand.NewPCG(seed, 6))
		before, after := plantest.RandomConfig(r), plantest.RandomConfig(r)
		if d := forecast.Compare(before, before); !d.Empty() {
			t.Fatalf("seed %d: a configuration differs from itself: %+v", seed, d)
		}
		d, back := forecast.Compare(before, after), forecast.Compare(after, before)
		if len(d.Images) != len(back.Images) || len(d.Nodes) != len(back.Nodes) || d.Settings != back.Settings {
			t.Fatalf("seed %d: there %+v, back %+v", seed, d, back)
		}
		comes := map[string]int{}
		for i, one := range d.Images {
			if other := back.Images[i]; !reflect.DeepEqual(one.Added, other.Removed) && len(one.Added) == 1 || one.Image != other.Image {
				t.Errorf("seed %d: there %+v, back %+v", seed, one, other)
			}
			for _, place := range one.Added {
				if slices.Contains(one.Before, place) || !slices.Contains(one.After, place) {
					t.Errorf("seed %d: %+v", seed, one)
				}
				comes[one.Image]++
			}
		}
		for _, node := range d.Nodes {
			for _, name := range node.Comes {
				comes[name]--
			}
		}
		for name := range maps.Keys(comes) {
			if comes[name] != 0 {
				t.Errorf("seed %d: image %s comes elsewhere than nodes say", seed, name)
			}
		}
	}
}
