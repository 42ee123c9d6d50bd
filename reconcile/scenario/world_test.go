package scenario

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/simulation"
	"github.com/seed-26586806/backing-image-manager/schema"
)

var seeds = flag.Int("seeds", 40, "number of random clusters")

// TestDeletionsFollowTheRules runs random clusters, and checks every deletion against the state
// of the cluster, without the planner.
func TestDeletionsFollowTheRules(t *testing.T) {
	t.Parallel()
	executed := map[model.Op]int{}
	for seed := range uint64(*seeds) {
		run := runRandom(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d\n%s", seed, run.log)
		}
		for _, e := range run.world.history {
			executed[e.Op]++
		}
	}
	for _, op := range []model.Op{model.Download, model.Export, model.Clone, model.Sync, model.Adopt, model.Verify, model.Repair, model.Cleanup, model.Evict} {
		if executed[op] == 0 {
			t.Errorf("no cluster executed %s: the random events do not cover enough", op)
		}
	}
}

func TestSameSeedGivesTheSameHistory(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		if a, b := runRandom(t, seed).log, runRandom(t, seed).log; a != b {
			t.Errorf("seed %d: the first run is\n%s\nthe second is\n%s", seed, a, b)
		}
	}
}

type randomRun struct {
	world *world
	log   string
}

// runRandom applies random events, and converges after each of them. It checks each action.
func runRandom(t *testing.T, seed uint64) randomRun {
	t.Helper()
	r := dice{rand.New(rand.NewPCG(seed, 7))}
	w, err := newWorld(r.config())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for range 25 {
		fmt.Fprintf(&b, "+%v %s\n", w.now.Sub(w.startedAt), r.apply(w))
		before := copiesOf(w)
		history, err := w.converge(t.Context(), 0)
		if err != nil {
			t.Error(err)
		}
		for _, e := range history {
			fmt.Fprintf(&b, "    %s %s: %s (%v)\n", e.Op, e.CopyRef(), e.Text, e.err)
			if e.Op.Deletes() && e.err == nil {
				checkDeletion(t, w, before, e)
			}
		}
		checkSpace(t, w)
	}
	fmt.Fprintf(&b, "%+v\n", w.plan())
	return randomRun{w, b.String()}
}

// copiesOf returns the copies on the declared disks.
func copiesOf(w *world) map[ident.CopyRef]simulation.Copy {
	copies := map[ident.CopyRef]simulation.Copy{}
	for ref, at := range w.locations() {
		for id, c := range w.disks[at].Copies {
			copies[ident.CopyRef{Disk: ref, ID: id}] = *c
		}
	}
	return copies
}

// checkDeletion checks a deletion against the state of the cluster before and after the managers
// worked. It checks only some of the rules of deletions. Package simulation checks all of them.
func checkDeletion(t *testing.T, w *world, before map[ident.CopyRef]simulation.Copy, e executed) {
	t.Helper()
	never := func(violated bool, text string) {
		if violated {
			t.Errorf("%s of %s: %s", e.Op, e.CopyRef(), text)
		}
	}
	key := e.CopyRef()
	never(before[key].Users > 0 || w.at(key.Disk).Replicas[key.ID].Count > 0, "it is in use")
	never(w.base.Allowed != schema.Everything, "the configuration has errors")
	never(!w.reachable(key.Disk), "the disk is unreachable")
	image, declared := w.base.Config.Images[key.ID.Name]
	if !declared {
		for ref := range w.locations() {
			never(!w.reachable(ref), fmt.Sprintf("its use on %s is unknown", ref))
			never(before[ident.CopyRef{Disk: ref, ID: key.ID}].Users > 0, "it is used on another disk")
		}
		return
	}
	never(len(readyDisks(w, image.ID)) == 0, "no copy remains")
}

// checkSpace checks the space on all disks.
func checkSpace(t *testing.T, w *world) {
	t.Helper()
	for ref, at := range w.locations() {
		d := w.disks[at]
		if free := d.Free(); free < 0 || free > d.Total {
			t.Errorf("%s has %d of %d bytes free", ref, free, d.Total)
		}
	}
}

// A node that stays down is replaced after the recovery interval. When it is up again, the
// surplus copy is deleted after the clean-up interval.
func TestConvergeMovesTheClockFromDeadlineToDeadline(t *testing.T) {
	t.Parallel()
	parrot := schema.Image{ID: ident.ID{Name: "parrot", UUID: "0000000a"}, Copies: 2, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}}
	w, err := newWorld(threeNodes(parrot))
	if err != nil {
		t.Fatal(err)
	}
	converge := func(limit time.Duration, want ...string) {
		t.Helper()
		var got []string
		history, err := w.converge(t.Context(), limit)
		for _, e := range history {
			got = append(got, fmt.Sprintf("+%v %s %s", e.at.Sub(w.startedAt), e.Op, e.Node))
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("executed %q, error %v; want %q", got, err, want)
		}
	}
	ranked := rankDisks(w, parrot.ID)
	first, second, third := ranked[0].Disk.Node, ranked[1].Disk.Node, ranked[2].Disk.Node
	converge(0, "+0s download "+first, "+0s sync "+second)
	w.setUp(first, false)
	converge(4 * time.Minute)
	converge(time.Hour, "+5m0s sync "+third)
	w.setUp(first, true)
	converge(0)
	converge(2*time.Hour, "+2h4m0s cleanup "+third)
	if got := w.now.Sub(w.startedAt); got != 3*time.Hour+4*time.Minute {
		t.Errorf("the clock is at +%v", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := w.converge(ctx, 100*365*24*time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("after a cancel the error is %v", err)
	}
}
