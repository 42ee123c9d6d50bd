package simulation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
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
		reportSeed(t, uint64(*clusterSeed))
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
		reportSeed(t, *sum.failed)
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

// totals is what many runs came to.
type totals struct {
	runs      int
	failed    *uint64 // the first seed that broke a rule
	pairs     map[string]int
	completed map[plan.Op]int
}

func (s totals) String() string {
	var b strings.Builder
	for _, pair := range allPairs {
		fmt.Fprintf(&b, "\n  %6d times %s", s.pairs[pair], pair)
	}
	for _, kind := range plan.Ops {
		fmt.Fprintf(&b, "\n  %6d times %s", s.completed[kind], kind)
	}
	return b.String()
}

// simulateClusters runs seeds until one breaks a rule. The first that does is the same
// in every run.
func simulateClusters(t *testing.T, seeds int, first uint64) totals {
	total := totals{pairs: map[string]int{}, completed: map[plan.Op]int{}}
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
				if len(c.violations) > 0 {
					stop.Store(true)
				}
			}
		})
	}
	wait.Wait()
	return total
}

func (s *totals) add(c *cluster) {
	s.runs++
	for pair, n := range c.pairs {
		s.pairs[pair] += n
	}
	for kind, n := range c.done {
		s.completed[kind] += n
	}
	if len(c.violations) > 0 && (s.failed == nil || *s.failed > c.seed) {
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
	c.after(c.between(0, 5*time.Minute), c.injectFaults)
	c.runUntil(c.between(15*time.Minute, 40*time.Minute))
	if len(c.violations) == 0 {
		c.heal(!c.oneIn(3))
		c.converge()
	}
	if len(c.violations) == 0 {
		c.removeImageAtEnd()
	}
	return c
}

func reportSeed(t *testing.T, seed uint64) {
	c := runCluster(seed, true)
	if len(c.violations) > 0 {
		t.Errorf("seed %d broke a rule:\n%s\nto see more: go test ./reconcile/simulation -run 'TestCluster$' -v -cluster.seeds=%d -cluster.seed=%d -cluster.lines=100000",
			seed, strings.Join(c.violations, "\n"), min(*clusterSeeds, 1), seed)
	}
	t.Logf("seed %d: what happened\n%s\n%s", seed, c.trace, c.describe())
}

// rng make the random decisions of a simulation.
type rng struct{ *rand.Rand }

func (r rng) oneIn(in int) bool { return r.IntN(in) == 0 }

func pick[T any](r rng, of ...T) T { return of[r.IntN(len(of))] }
