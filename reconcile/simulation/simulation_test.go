package simulation

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

var (
	clusterSeeds = flag.Int("cluster.seeds", 0, "how many clusters of 5 to 12 nodes to simulate; 0: a few of 3 to 7")
	clusterFirst = flag.Uint64("cluster.first", 0, "the first of these seeds")
	clusterSeed  = flag.Int64("cluster.seed", -1, "simulate this one, and tell what happens")
	clusterWorld = flag.Bool("cluster.world", false, "do not ask what was answered, only what was so")
	clusterLines = flag.Int("cluster.lines", 300, "how much to tell")
)

// TestCluster lets clusters go through faults and changes at every moment, and holds
// each deletion against the world. When the faults end, they have to come to rest with
// what is declared.
func TestCluster(t *testing.T) {
	t.Parallel()
	if *clusterSeed >= 0 {
		tellCluster(t, uint64(*clusterSeed))
		return
	}
	seeds := *clusterSeeds
	if seeds == 0 {
		seeds = 50
		if race.Enabled {
			seeds = 6
		}
	}
	began := time.Now()
	sum := simulateClusters(t, seeds, *clusterFirst)
	t.Logf("%d clusters in %s: %s", sum.runs, time.Since(began).Round(time.Millisecond), sum)
	if sum.failed != nil {
		tellCluster(t, *sum.failed)
	}
	if *clusterSeeds == 0 {
		return
	}
	for _, pair := range allPairs {
		if sum.pairs[pair] == 0 {
			t.Errorf("%s was never seen: the order of events is too mild", pair)
		}
	}
}

// sum is what many runs came to.
type sum struct {
	runs   int
	failed *uint64 // the first seed that broke a rule
	pairs  map[string]int
	done   map[plan.Op]int
}

func (s sum) String() string {
	var b strings.Builder
	for _, pair := range allPairs {
		fmt.Fprintf(&b, "\n  %6d times %s", s.pairs[pair], pair)
	}
	for _, kind := range plan.Ops {
		fmt.Fprintf(&b, "\n  %6d times %s", s.done[kind], kind)
	}
	return b.String()
}

// simulateClusters runs seeds until one breaks a rule. The first that does is the same
// in every run.
func simulateClusters(t *testing.T, seeds int, first uint64) sum {
	total := sum{pairs: map[string]int{}, done: map[plan.Op]int{}}
	var (
		next atomic.Uint64
		stop atomic.Bool
		mu   sync.Mutex
		wait sync.WaitGroup
	)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for !stop.Load() {
				seed := first + next.Add(1) - 1
				if seed >= first+uint64(seeds) {
					return
				}
				c := runCluster(seed, false)
				mu.Lock()
				if total.add(c); total.runs%1000 == 0 {
					t.Logf("%d clusters", total.runs)
				}
				mu.Unlock()
				if len(c.found) > 0 {
					stop.Store(true)
				}
			}
		})
	}
	wait.Wait()
	return total
}

func (s *sum) add(c *cluster) {
	s.runs++
	for pair, n := range c.pairs {
		s.pairs[pair] += n
	}
	for kind, n := range c.done {
		s.done[kind] += n
	}
	if len(c.found) > 0 && (s.failed == nil || *s.failed > c.seed) {
		s.failed = &c.seed
	}
}

// runCluster is one run. A cluster that told rather than not is the same.
func runCluster(seed uint64, told bool) *cluster {
	least, most := 3, 7
	if *clusterSeeds > 0 {
		least, most = 5, 12
	}
	c := newCluster(seed, least, most, told)
	defer c.close()
	c.after(c.between(0, 5*time.Minute), c.trouble)
	c.until(c.between(15*time.Minute, 40*time.Minute))
	if len(c.found) == 0 {
		c.heal(!c.one(3))
		c.comeToRest()
	}
	if len(c.found) == 0 {
		c.farewell()
	}
	return c
}

func tellCluster(t *testing.T, seed uint64) {
	c := runCluster(seed, true)
	if len(c.found) > 0 {
		t.Errorf("seed %d broke a rule:\n%s\nto see more: go test ./reconcile/simulation -run 'TestCluster$' -v -cluster.seeds=%d -cluster.seed=%d -cluster.lines=100000",
			seed, strings.Join(c.found, "\n"), min(*clusterSeeds, 1), seed)
	}
	t.Logf("seed %d: what happened\n%s\n%s", seed, c.story, c.scene())
}

// scene is what is where, for people.
func (c *cluster) scene() string {
	var b strings.Builder
	for _, ref := range c.places() {
		d := c.drives[ref]
		fmt.Fprintf(&b, "%s %s there=%v", ref, d.uuid, d.there)
		for _, id := range d.ids() {
			s := d.slots[id]
			fmt.Fprintf(&b, "; %s bytes %q of %q part %d users %d failed %q touched %v ours %v", id, s.letter, s.digest, s.part, s.users, s.failed, s.touched, s.owned)
		}
		b.WriteString("\n")
	}
	for _, name := range c.names {
		m := c.nodes[name]
		fmt.Fprintf(&b, "%s up=%v rounds=%d digest=%s\n", name, m.up, m.rounds, m.inForce)
		for _, a := range m.plan.Actions {
			fmt.Fprintf(&b, "    %s %s: %s (until %s)\n", a.Op, a.CopyRef(), a.Text, a.Until)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.head().config.Images)) {
		image := c.head().config.Images[name]
		fmt.Fprintf(&b, "%s copies %d all %v checksum %.8s named %v ranked %v\n", image.ID, image.Copies, image.AllDisks, image.Checksum, image.Disks, c.rank(c.head(), image))
	}
	return b.String()
}
