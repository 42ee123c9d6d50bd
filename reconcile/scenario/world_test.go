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

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

var seeds = flag.Int("seeds", 40, "number of random clusters")

// TestDeletionsFollowTheRules runs random clusters, and checks every deletion against the state
// of the cluster, without the planner.
func TestDeletionsFollowTheRules(t *testing.T) {
	t.Parallel()
	executed := map[plan.Op]int{}
	for seed := range uint64(*seeds) {
		run := runRandom(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d\n%s", seed, run.log)
		}
		for _, e := range run.world.history {
			executed[e.Op]++
		}
	}
	for _, op := range []plan.Op{plan.Download, plan.Export, plan.Clone, plan.Sync, plan.Adopt, plan.Verify, plan.Repair, plan.Cleanup, plan.Evict} {
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
		for rounds := 0; ; rounds++ {
			if rounds > maxRoundsAtOnce {
				t.Error("the cluster does not converge")
				return randomRun{w, b.String()}
			}
			worked := false
			for _, a := range w.due() {
				violations, count := deletionViolations(w, a), len(w.history)
				worked = w.execute(a) || worked
				for _, e := range w.history[count:] {
					fmt.Fprintf(&b, "    %s %s: %s (%v)\n", e.Op, e.CopyRef(), e.Text, e.err)
					for _, v := range violations {
						t.Errorf("%s of %s: %s", e.Op, e.CopyRef(), v)
					}
				}
			}
			if !worked {
				break
			}
		}
		checkSpace(t, w)
	}
	fmt.Fprintf(&b, "%+v\n", w.plan())
	return randomRun{w, b.String()}
}

// deletionViolations returns the rules that the deletion of a copy violates now.
func deletionViolations(w *world, a plan.Action) []string {
	if !a.Op.Deletes() {
		return nil
	}
	var violations []string
	never := func(violated bool, text string) {
		if violated {
			violations = append(violations, text)
		}
	}
	key, c := a.CopyRef(), w.at(a.CopyRef().Disk).Copies[a.CopyRef().ID]
	never(c.UsedBy != "", "it is in use")
	never(w.base.Allowed != schema.Everything, "the configuration has errors")
	never(!w.reachable(key.Disk), "the disk is unreachable")
	image, declared := w.base.Config.Images[key.ID.Name]
	wait := w.base.Config.Settings.CleanupWaitInterval
	if a.Op == plan.Cleanup && wait > 0 {
		never(c.SurplusSince.IsZero() || w.now.Sub(c.SurplusSince) < wait, "it was desired recently")
		never(!c.LastUsed.IsZero() && w.now.Sub(c.LastUsed) < wait, "it was used recently")
	}
	if !declared {
		for ref, at := range w.locations() {
			never(!w.reachable(ref), fmt.Sprintf("its use on %s is unknown", ref))
			never(w.disks[at].Copies[key.ID].UsedBy != "", "it is used on another disk")
		}
		return violations
	}
	left := slices.DeleteFunc(w.readyDisks(image.ID), func(ref schema.DiskRef) bool { return ref == key.Disk && key.ID == image.ID })
	never(len(left) == 0, "it is the last copy")
	ready := key.ID == image.ID && c.State == disk.Ready
	never(ready && !image.AllDisks && len(left) < image.Copies, fmt.Sprintf("%d of %d copies remain", len(left), image.Copies))
	return violations
}

// checkSpace checks the space on all disks.
func checkSpace(t *testing.T, w *world) {
	t.Helper()
	for ref, at := range w.locations() {
		d := w.disks[at]
		if d.Space.Free < 0 || d.Space.Free > d.Space.Total {
			t.Errorf("%s has %d of %d bytes free", ref, d.Space.Free, d.Space.Total)
		}
	}
}

// A node that stays down is replaced after the recovery interval. When it is up again, the
// surplus copy is deleted after the clean-up interval.
func TestConvergeMovesTheClockFromDeadlineToDeadline(t *testing.T) {
	t.Parallel()
	c := dice{rand.New(rand.NewPCG(1, 1))}.config()
	c.Config.Settings = schema.Settings{CleanupWaitInterval: time.Hour, RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50)}
	c.Config.Nodes = map[string]schema.Node{}
	for _, name := range []string{"node1", "node2", "node3"} {
		c.Config.Nodes[name] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{"disk1": {Path: "/disk1", AllowScheduling: true}}}
	}
	parrot := schema.Image{ID: disk.ID{Name: "parrot", UUID: "0000000a"}, Copies: 2, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}}
	c.Config.Images = map[string]schema.Image{"parrot": parrot}
	w, err := newWorld(c)
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
	ranked := w.desired("node1").RankDisks(w.cluster().Observe(w.upNodes())[0], "parrot")
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
