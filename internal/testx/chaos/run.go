package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Verdict is the result of a run.
type Verdict struct {
	Events     int
	Violations []string
	Text       string // figures, and what was excused, in a few lines
}

// run is the course of a run: its watchers, its cycles and its verdict.
type run struct{ *cluster }

// Run runs a cluster through its cycles. It ends the daemons, network namespaces and mounts when the test ends
// at the latest. The folder of the run stays.
//
// An interrupt (SIGINT) ends it early, without a verdict.
func Run(t testing.TB, scale Scale) Verdict {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	c, err := newCluster(t, scale)
	r := run{c}
	if c != nil {
		t.Cleanup(r.killAll) // before the disks and the network are removed
	}
	if err != nil {
		t.Fatal(err)
	}
	c.note("seed %d: %d nodes, %d images, %d cycles of %v; %s is never killed", c.Seed, len(c.nodes), len(c.images), c.Cycles, c.Cycle, c.steady.name)
	r.startAll()
	stop := r.watch()
	var measured []map[string]figures
	measure := func(converged bool) bool {
		if converged {
			measured = append(measured, r.measure())
		}
		return converged
	}
	r.uploadAll()
	if measure(convergence{c}.waitConverged(ctx)) {
		for cycle := range c.Cycles {
			r.cycle(ctx, cycle)
			if !measure(convergence{c}.waitConverged(ctx)) {
				break
			}
		}
	}
	c.commands.Wait()
	stop()
	if ctx.Err() != nil {
		t.Fatal("interrupted")
	}
	r.haltAll()
	c.observer.checkLogs()
	r.checkGrowth(measured)
	return r.verdict(measured)
}

func (r run) startAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.nodes {
		if err := n.start(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// uploadAll uploads the images that only people have, to the first node that takes them.
func (r run) uploadAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.truth.sorted() {
		if d.generation.image.upload {
			r.uploadTo(r.nodes[0], d.generation, commandTime, func(err error) {
				r.note("    upload of %s to %s: %v", d.generation, r.nodes[0].name, err)
			})
		}
	}
}

// watch looks at the disks, and queries the daemons, until the function that it returns is called.
func (r run) watch() (stop func()) {
	ended := make(chan struct{})
	var watchers sync.WaitGroup
	every := func(interval time.Duration, f func()) {
		watchers.Go(func() {
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			for {
				select {
				case <-ended:
					return
				case <-ticker.C:
					f()
				}
			}
		})
	}
	every(150*time.Millisecond, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.observer.look()
		r.supervise()
	})
	for _, n := range r.nodes {
		w := &watcher{cluster: r.cluster, node: n}
		every(2*time.Second, w.query)
	}
	return func() {
		close(ended)
		watchers.Wait()
	}
}

// supervise restarts daemons that exited by themselves. They may do that at their start if their
// configuration is damaged or all their disks are away; otherwise it is a violation.
func (r run) supervise() {
	for _, n := range r.nodes {
		if n.daemon == nil || !n.daemon.exited() || n.daemon.asked {
			continue
		}
		away := !slices.ContainsFunc(n.disks, func(d *disk) bool { return d.attached && !r.busy[diskOf(d)] })
		if n.damaged || away {
			r.excuse("exited at a fault of its node", "%s: %v", n.name, n.daemon.err)
		} else {
			r.violation("exit "+n.name, "%s exited: %v; its log ends with:\n%s", n.name, n.daemon.err, tail(n.log()))
		}
		if err := n.start(); err != nil {
			r.t.Error(err)
		}
	}
}

// watcher queries one daemon.
type watcher struct {
	*cluster
	node     *node
	answered time.Time
}

// deadTime is how long a running daemon may neither answer nor complete a round.
const deadTime = time.Minute

// query checks that the daemon answers and completes rounds, and that what it says is ready is there.
func (w *watcher) query() {
	s, err := w.client.status(w.node)
	var f figures
	if err == nil {
		f, err = w.client.figures(w.node)
	}
	answered := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.answered = answered
	}
	if time.Since(answered) > time.Second {
		return // the suite was busy, and what the daemon said is old
	}
	if err == nil {
		w.observer.look()
		w.observer.checkReady(w.node, s)
	}
	switch up := w.node.upFor(); {
	case up < deadTime:
	case time.Since(w.answered) > deadTime:
		w.violation("answer "+w.node.name, "%s has not answered for %v: %v", w.node.name, time.Since(w.answered).Round(time.Second), err)
	case err == nil && time.Since(f.lastRound) > deadTime:
		w.violation("round "+w.node.name, "%s has completed no round for %v", w.node.name, time.Since(f.lastRound).Round(time.Second))
	}
}

// due is a fault that is healed at a time.
type due struct {
	at   time.Duration
	what string
	heal func() error
}

// cycle executes the events of one cycle, and heals all faults.
func (r run) cycle(ctx context.Context, number int) {
	r.note("--- cycle %d", number)
	events := newPlan(r.Seed, number, r.Cycle, r.Apart, r.Longest)
	start := time.Now()
	var faults []due
	for len(events) > 0 || len(faults) > 0 {
		elapsed := time.Since(start)
		if ctx.Err() != nil {
			return
		}
		next := r.Cycle
		if len(events) > 0 {
			next = events[0].At
		}
		if len(faults) > 0 {
			next = min(next, faults[0].at)
		}
		if elapsed < next {
			select {
			case <-time.After(next - elapsed):
			case <-ctx.Done():
			}
			continue
		}
		if len(faults) > 0 && (faults[0].at <= elapsed || elapsed >= r.Cycle) {
			f := faults[0]
			faults = faults[1:]
			if !r.heal(f) {
				f.at = elapsed + time.Second
				faults = append(faults, f)
			}
			continue
		}
		e := events[0]
		events = events[1:]
		if heal := r.execute(e); heal != nil {
			faults = append(faults, due{elapsed + e.For, string(e.Kind), heal})
			slices.SortStableFunc(faults, func(a, b due) int { return int(a.at - b.at) })
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.upstream.ClearRequests()
	r.note("--- all faults are healed")
}

// execute executes an event. It returns how the fault is healed, nil if there is nothing to heal.
func (r run) execute(e Event) func() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.observer.look() // the events choose among what is there now
	start := time.Now()
	did, err := happenings[e.Kind](r.cluster, e)
	if took := time.Since(start); took > time.Second {
		r.note("slow: %s took %v", e.Kind, took)
	}
	switch {
	case errors.Is(err, errSkipped):
		r.skip()
		return nil
	case err != nil:
		r.t.Errorf("%s: %v", e.Kind, err)
	}
	r.happened(e, did.text)
	return did.heal
}

// heal heals a fault. It returns false if that has to wait until the file system is writable again.
func (r run) heal(f due) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := f.heal()
	if errors.Is(err, syscall.EROFS) {
		return false
	}
	if err != nil {
		r.t.Errorf("heal %s: %v", f.what, err)
	}
	return true
}

// measure returns the figures of each daemon, once it is idle.
func (r run) measure() map[string]figures {
	time.Sleep(time.Second) // the last responses end
	m := map[string]figures{}
	for _, n := range r.nodes {
		f, err := r.client.figures(n)
		if err != nil {
			r.violation("figures "+n.name, "%v", err)
			continue
		}
		m[n.name] = f
		r.note("%s: %v", n.name, f)
	}
	return m
}

// Limits of growth, over what a daemon had before the first fault. The resident memory includes what the Go
// runtime keeps for the next transfer; descriptors and goroutines include the idle connections of the last
// transfers, which stay open for a while. A leak of one for each fault exceeds them in a run of some cycles.
const (
	moreMemory      = 96 * mib
	moreGoroutines  = 64
	moreDescriptors = 48
)

// checkGrowth compares the last figures of each daemon with the first ones.
func (r run) checkGrowth(measured []map[string]figures) {
	if len(measured) < 2 {
		return
	}
	for _, n := range r.nodes {
		before, after := measured[0][n.name], measured[len(measured)-1][n.name]
		if after.memory > before.memory+moreMemory || after.goroutines > before.goroutines+moreGoroutines || after.descriptors > before.descriptors+moreDescriptors {
			r.violation("growth "+n.name, "%s has grown from %v to %v", n.name, before, after)
		}
	}
}

// haltAll ends the daemons, and checks that each exits with 0.
func (r run) haltAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.nodes {
		if n.daemon == nil {
			continue
		}
		if err := n.halt(); err != nil {
			r.violation("halt "+n.name, "%v", err)
		}
	}
}

// killAll ends what still runs.
func (r run) killAll() {
	r.commands.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.uses {
		_ = r.endUse(name) // the disks are removed anyway
	}
	for _, n := range r.nodes {
		if n.daemon != nil {
			_ = n.kill() // it may have exited
		}
	}
}

func (r run) verdict(measured []map[string]figures) Verdict {
	events, violations := r.summary()
	var b strings.Builder
	fmt.Fprintf(&b, "%d events happened, %d found nothing to happen to; %d looks at the disks\n", events, r.skipped, r.observer.looks)
	for what, n := range r.excused {
		fmt.Fprintf(&b, "excused %d times: %s\n", n, what)
	}
	if len(measured) > 0 {
		for _, n := range r.nodes {
			fmt.Fprintf(&b, "%s: %v at first, %v at the end\n", n.name, measured[0][n.name], measured[len(measured)-1][n.name])
		}
	}
	return Verdict{events, violations, b.String()}
}
