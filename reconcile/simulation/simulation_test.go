package simulation

// The tests of this package run many managers in one process: the real reconcile.Loop and
// Reconciler of each node. A seed decides everything that happens: which configurations are
// declared and when each node reads them, crashes, partitions, slow links, clocks that are set,
// lost, moved, full and failing disks, damage, volumes that start to use a copy, replicas on disks without a copy, uploads, and
// sources that fail. True time is simulated, so a seed replays exactly. The rules (those of
// docs/rules.md about deletions and first copies, and that the cluster converges to the desired state)
// are checked against the simulated disks themselves, which no manager sees.
//
// Reading order:
//
//	disk.go, content.go, effects.go   disks, contents, and the effects of jobs
//	queue_test.go       events, and fibers: the code of a node runs as a coroutine that pauses
//	                    wherever it waits for the simulated system
//	cluster_test.go     the cluster
//	system_test.go      the system.System of a node
//	node_test.go, directory_test.go, history_test.go   a machine: its process and rounds, its
//	                    config directory, what is noted about copies for the rules
//	net_test.go, job_test.go, deletion_test.go, upload_test.go   what takes time outside a round
//	fault_test.go, config_test.go, source_test.go, pairs_test.go   faults and changes
//	need_test.go        replicas that need an image on a disk without a copy, and their rules
//	generation_test.go  older generations that are kept, and syncs that read them
//	adversity_test.go, compromised_test.go   nodes that the others cannot rely on
//	deletion_record_test.go, deletion_rules_test.go, firstcopy_rules_test.go, clone_test.go,
//	placement_test.go, heal_test.go, converge_test.go   the rules
//	simulation_test.go, trace_test.go   one run, many runs, what a run prints
//	three_nodes_test.go, compromised_cases_test.go   single cases with fixed events
//	shared_test.go, idle_test.go   disks that show one folder; clusters without events
//	mutants_test.go     product code with one rule removed, which the simulation must detect
//
// To replay seed N of "make simulate", with all events:
//
//	go test ./reconcile/simulation -run 'TestCluster$' -v -cluster.seeds=1 -cluster.seed=N -cluster.kind=KIND -cluster.lines=100000
//
// Without KIND in "make simulate", leave out -cluster.kind: it changes the events of a seed. Without
// -cluster.seeds=1 it is the smaller cluster that "go test" runs with this seed.
//
// To add a fault, see the section "Simulation" of docs/development.md.

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

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var (
	clusterSeeds = flag.Int("cluster.seeds", 0, "number of clusters of 5 to 12 nodes to simulate; 0: 50 clusters of 1 to 7 nodes")
	clusterFirst = flag.Uint64("cluster.first", 0, "first seed; the others follow it")
	clusterSeed  = flag.Int64("cluster.seed", -1, "simulate only this seed, and print its events")
	clusterWorld = flag.Bool("cluster.world", false, "check deletions only against the simulated disks, not against the responses and the proofs of peers")
	clusterLines = flag.Int("cluster.lines", 300, "number of events to print, the last ones")
)

// TestCluster runs clusters through faults and changes at every moment, and checks each deletion
// against the simulated disks. When the faults end, each cluster must converge to what is declared.
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
			t.Errorf("%s never happened: the events must meet more often", pair)
		}
	}
}

// totals are the sums over many runs.
type totals struct {
	runs      int
	failed    *uint64 // the lowest seed with a violation
	pairs     map[string]int
	completed map[model.Op]int
}

func (s totals) String() string {
	var b strings.Builder
	for _, pair := range allPairs {
		fmt.Fprintf(&b, "\n  %6d times %s", s.pairs[pair], pair)
	}
	for _, kind := range model.Ops {
		fmt.Fprintf(&b, "\n  %6d times %s", s.completed[kind], kind)
	}
	return b.String()
}

// simulateClusters runs the seeds in order until one has a violation. The lowest such seed is the
// same in every run, however many run at once.
func simulateClusters(t *testing.T, seeds int, first uint64) totals {
	total := totals{pairs: map[string]int{}, completed: map[model.Op]int{}}
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

// runCluster runs the cluster of a seed. traced: it keeps its last events, which changes nothing else.
func runCluster(seed uint64, traced bool) *cluster {
	least, most := 1, 7
	if *clusterSeeds > 0 {
		least, most = 5, 12
	}
	c := newCluster(seed, least, most, traced)
	defer c.close()
	c.after(c.between(0, 5*time.Minute), c.injectFaults)
	c.injectNeeds()
	c.runUntil(c.between(15*time.Minute, 40*time.Minute))
	if len(c.violations) == 0 {
		c.heal(!c.oneIn(3))
		c.checkAdversity()
	}
	if len(c.violations) == 0 {
		c.converge()
	}
	if len(c.violations) == 0 {
		c.removeImageAtEnd()
	}
	if len(c.violations) == 0 {
		c.raceDeletions()
	}
	if len(c.violations) == 0 {
		c.unmatchAllDisks()
	}
	return c
}

// reportSeed runs a seed again, and prints its violations and last events.
func reportSeed(t *testing.T, seed uint64) {
	c := runCluster(seed, true)
	if len(c.violations) > 0 {
		t.Errorf("seed %d broke a rule:\n%s\nto see more: go test ./reconcile/simulation -run 'TestCluster$' -v -cluster.seeds=%d -cluster.seed=%d -cluster.kind=%q -cluster.lines=100000",
			seed, strings.Join(c.violations, "\n"), min(*clusterSeeds, 1), seed, *clusterKind)
	}
	t.Logf("seed %d: the last events\n%s\n%s", seed, c.trace, c.describe())
}

// rng makes the random decisions of a simulation.
type rng struct{ *rand.Rand }

// oneIn is true with a probability of 1/n.
func (r rng) oneIn(n int) bool { return r.IntN(n) == 0 }

// pick returns one of the values.
func pick[T any](r rng, of ...T) T { return of[r.IntN(len(of))] }
