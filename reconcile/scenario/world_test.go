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

var seeds = flag.Int("seeds", 40, "how many random worlds to play")

func compare(a, b schema.DiskRef) int { return strings.Compare(a.String(), b.String()) }

// TestNever plays random worlds and holds every deletion against the world itself.
func TestNever(t *testing.T) {
	t.Parallel()
	done := map[plan.Op]int{}
	for seed := range uint64(*seeds) {
		story := play(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d\n%s", seed, story.text)
		}
		for _, d := range story.world.executed() {
			done[d.Op]++
		}
	}
	for _, kind := range []plan.Op{plan.Download, plan.Export, plan.Clone, plan.Sync, plan.Adopt, plan.Verify, plan.Repair, plan.Cleanup, plan.Evict} {
		if done[kind] == 0 {
			t.Errorf("there was never a %s: the worlds do not show enough", kind)
		}
	}
}

// TestSameAgain plays a world twice.
func TestSameAgain(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		if a, b := play(t, seed).text, play(t, seed).text; a != b {
			t.Errorf("seed %d: first\n%s\nthen\n%s", seed, a, b)
		}
	}
}

type story struct {
	world *world
	text  string
}

// play is Converge between whatever happens, with a look at each action.
func play(t *testing.T, seed uint64) story {
	t.Helper()
	r := dice{rand.New(rand.NewPCG(seed, 7))}
	w, err := newWorld(r.config())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for range 25 {
		fmt.Fprintf(&b, "+%v %s\n", w.sinceStart(w.now), r.happen(w))
		for rounds := 0; ; rounds++ {
			if rounds > mostAtOnce {
				t.Error("the managers do not come to rest")
				return story{w, b.String()}
			}
			acted := false
			for _, a := range w.due() {
				broken, count := forbids(w, a), len(w.history)
				acted = w.execute(a) || acted
				for _, d := range w.history[count:] {
					fmt.Fprintf(&b, "    %s %s: %s (%v)\n", d.Op, d.CopyRef(), d.Reason, d.Err)
					for _, why := range broken {
						t.Errorf("never: %s of %s: %s", d.Op, d.CopyRef(), why)
					}
				}
			}
			if !acted {
				break
			}
		}
		settled(t, w)
	}
	fmt.Fprintf(&b, "%+v\n", w.plan())
	return story{w, b.String()}
}

// forbids says what forbids to delete a copy now, by the rules and without the planner.
func forbids(w *world, a plan.Action) []string {
	if a.Op != plan.Cleanup && a.Op != plan.Evict {
		return nil
	}
	var why []string
	never := func(broken bool, text string) {
		if broken {
			why = append(why, text)
		}
	}
	key, c := a.CopyRef(), w.at(a.CopyRef().Disk).Copies[a.CopyRef().ID]
	never(c.UsedBy != "", "it is in use")
	never(w.base.Allowed != schema.Everything, "the configuration is broken")
	never(!w.reachable(key.Disk), "the disk cannot be reached")
	image, declared := w.base.Config.Images[key.ID.Name]
	wait := w.base.Config.Settings.CleanupWaitInterval
	if a.Op == plan.Cleanup && wait > 0 {
		never(c.SurplusSince.IsZero() || w.now.Sub(c.SurplusSince) < wait, "it was wanted just now")
		never(!c.LastUsed.IsZero() && w.now.Sub(c.LastUsed) < wait, "it was used just now")
	}
	if !declared {
		for ref, at := range w.places() {
			never(!w.reachable(ref), fmt.Sprintf("whether %s uses it is not known", ref))
			never(w.disks[at].Copies[key.ID].UsedBy != "", "it is used elsewhere")
		}
		return why
	}
	left := slices.DeleteFunc(w.readyDisks(image.ID), func(ref schema.DiskRef) bool { return ref == key.Disk && key.ID == image.ID })
	never(len(left) == 0, "it is the last")
	ready := key.ID == image.ID && c.State == disk.Ready
	never(ready && !image.AllDisks && len(left) < image.Copies, fmt.Sprintf("%d are left of %d", len(left), image.Copies))
	return why
}

// settled checks what is left when nothing more can be done.
func settled(t *testing.T, w *world) {
	t.Helper()
	for ref, at := range w.places() {
		d := w.disks[at]
		if d.Space.Free < 0 || d.Space.Free > d.Space.Total {
			t.Errorf("%s has %d of %d bytes free", ref, d.Space.Free, d.Space.Total)
		}
	}
}

// TestConverge goes from deadline to deadline: a node that stays away is replaced after
// the recovery interval, and what is surplus when it is back goes after the clean-up
// interval.
func TestConverge(t *testing.T) {
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
		done, err := w.converge(t.Context(), limit)
		for _, d := range done {
			got = append(got, fmt.Sprintf("+%v %s %s", w.sinceStart(d.At), d.Op, d.Node))
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("it did %q, error %v; want %q", got, err, want)
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
	if got := w.sinceStart(w.Now()); got != 3*time.Hour+4*time.Minute {
		t.Errorf("the clock stands at +%v", got)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := w.converge(ctx, 100*365*24*time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("nobody wants it to go on, and it says %v", err)
	}
}
