package simulation

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// node is one machine: its config directory, its wall clock and, while it is up, a process that
// runs a reconcile.Loop.
type node struct {
	c           *cluster
	name        string
	up          bool
	starts      int           // of processes
	clockOffset time.Duration // of the wall clock from the true time
	directory   *declaration  // the last valid content of the config directory
	dirBroken   bool          // the config directory has an error now
	dirStale    bool          // new configurations do not arrive
	dirEmpty    bool          // the config directory is empty
	ownDisks    map[string]schema.Disk
	liar        *liar // runs instead of the process while the node is compromised; nil: it is not
	process
}

// process is the memory of a process, and what the simulation notes about it. It is lost when the
// node crashes.
type process struct {
	loop   *reconcile.Loop
	ctx    context.Context
	cancel context.CancelFunc

	// The content of the config directory that the loop has applied.
	applied       *declaration // nil: none yet
	appliedAt     time.Duration
	appliedBroken bool                     // with an error
	appliedEmpty  bool                     // the config directory was empty at the last read
	brokenAtStart bool                     // with an error since the start of the process
	invalidImage  string                   // the only invalid image at the start; "": everything is invalid
	next          *declaration             // the content that the next round applies
	reread        bool                     // the config directory was read again: the next round applies the result, also without a change
	removedAt     map[string]time.Duration // by image

	// Rounds.
	busy, due bool         // a round runs; another one has to follow
	toBegin   []func()     // jobs that begin at the end of the round
	desired   plan.Desired // of the last round, as the next fields
	observed  plan.Observed
	plan      plan.Plan
	rounds    int
	wakes     int // waits that began; the end of any but the last is ignored

	// Jobs and requests.
	jobs              map[ident.CopyRef]*runningJob
	requestedCleanups map[ident.CopyRef]time.Duration // when they were accepted
	uploads           map[ident.CopyRef]*uploader     // until their jobs end
	failedJobs        map[ident.CopyRef]bool          // since the last round

	// The network.
	peers     map[string]*peerView
	published *publication
	polls     []*poll // without a response

	// The observation of the present round.
	observing      bool
	roundBegan     time.Duration
	observations   int
	observedDigest string // of the configuration
	listed         []listing

	// The wall clock and the records on the disks.
	clockSteps     int            // how often the wall clock was set
	observedOffset time.Duration  // of the wall clock in the last round
	recorded       map[string]int // by the uuid of a disk: the steps up to which its times are right
	unwritten      map[unwrittenKey]bool
}

// after calls do when wait has passed, unless the process ended before.
func (m *node) after(wait time.Duration, do func()) {
	starts := m.starts
	m.c.after(wait, func() {
		if m.up && m.starts == starts {
			do()
		}
	})
}

// afterMoment calls do after a moment, unless the process ended before.
func (m *node) afterMoment(do func()) { m.after(m.c.moment(), do) }

// start starts a process. It knows only its disks and its config directory.
func (m *node) start() {
	if m.up {
		return
	}
	m.starts, m.up = m.starts+1, true
	log := slog.New(slog.DiscardHandler)
	m.process = process{
		loop:      reconcile.NewLoop(reconcile.NewWith(m.system(), log), reconcile.LoopOptions{Interval: time.Minute, Node: m.name, Log: log}),
		removedAt: map[string]time.Duration{}, jobs: map[ident.CopyRef]*runningJob{}, requestedCleanups: map[ident.CopyRef]time.Duration{},
		uploads: map[ident.CopyRef]*uploader{}, failedJobs: map[ident.CopyRef]bool{}, peers: map[string]*peerView{},
		observedOffset: m.clockOffset, recorded: map[string]int{}, unwritten: map[unwrittenKey]bool{},
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.c.logf(m.name, "starts")
	m.c.countReturn(m)
	if m.directory == nil {
		m.directory = m.c.latest()
	}
	if !m.dirEmpty {
		m.next = m.directory
	}
	m.after(m.c.between(0, time.Minute), m.readPeriodically)
	m.requestRound()
}

// crash ends the process at once. The next process renames back the folders that this one has set
// aside.
func (m *node) crash() {
	if !m.up || m.liar != nil {
		return
	}
	m.c.logf(m.name, "crashes")
	m.up = false
	m.cancel()
	for ref := range m.ownDisks {
		if d := m.c.disks[ident.DiskRef{Node: m.name, Disk: ref}]; d != nil {
			for _, s := range d.Copies {
				s.Aside = false
			}
		}
	}
	m.c.deletions = slices.DeleteFunc(m.c.deletions, func(r *deletion) bool { return r.node == m })
	m.excuseCopies()
}

// readPeriodically reads the config directory about every minute, because events may be lost.
func (m *node) readPeriodically() {
	m.reread = true
	m.requestRound()
	m.after(m.c.between(50*time.Second, 70*time.Second), m.readPeriodically)
}

// requestRound starts a round after a moment. While a round runs, it requests another one.
func (m *node) requestRound() {
	switch {
	case !m.up || m.liar != nil:
	case m.busy:
		m.due = true
	default:
		m.busy = true
		m.afterMoment(func() { m.c.spawn(&fiber{node: m}, m.round) })
	}
}

// round does one round, as Loop.Run does after an event, and begins the jobs that it has started.
func (m *node) round() {
	if !m.configure() {
		return
	}
	m.observing, m.roundBegan, m.listed = true, m.c.now, nil
	if m.clockOffset != m.observedOffset {
		m.clockSteps++
	}
	m.observedOffset = m.clockOffset
	m.observations = 0
	wait := m.loop.Step(m.ctx)
	m.observing, m.busy = false, false
	m.failedJobs = map[ident.CopyRef]bool{}
	v := m.loop.View()
	m.desired, m.observed, m.plan, m.rounds = v.Desired, v.Observed, v.Plan, v.Rounds
	if m.rounds%checkEvery == 0 || len(m.plan.Ends) > 0 {
		plantest.CheckPlan(planErrors{c: m.c, node: m.name}, m.desired, m.observed, m.plan)
	}
	m.checkObservedDisks()
	m.noteUnwritten()
	m.stopJobs()
	toBegin := m.toBegin
	m.toBegin = nil
	for _, begin := range toBegin {
		begin()
	}
	m.checkSingleFirstCopy()
	m.wakeAfter(wait)
	if m.due {
		m.due = false
		m.after(m.c.between(0, 2*time.Second), m.requestRound)
	}
}

// wakeAfter requests a round when a wait of the plan is over.
func (m *node) wakeAfter(wait time.Duration) {
	m.wakes++
	wakes := m.wakes
	if wait < time.Minute { // otherwise readPeriodically is earlier
		m.after(wait, func() {
			if m.wakes == wakes {
				m.requestRound()
			}
		})
	}
}

// leaving reports whether a copy of the node is withdrawn.
func (m *node) leaving(key ident.CopyRef) bool {
	return m.loop.PeerNode().Leaving(key.Disk.Disk, key.ID)
}

// suspects reports whether the node suspects a copy because another copy, made of it, is wrong.
func (m *node) suspects(key ident.CopyRef) bool {
	return plan.Suspects(m.observed.Failures)[key]
}

// sortedJobs returns the jobs sorted by disk and image.
func (m *node) sortedJobs() []*runningJob {
	jobs := slices.Collect(maps.Values(m.jobs))
	slices.SortFunc(jobs, func(a, b *runningJob) int {
		return cmp.Or(ident.DiskRef.Compare(a.key.Disk, b.key.Disk), ident.ID.Compare(a.key.ID, b.key.ID))
	})
	return jobs
}

// Of checkEvery consecutive plans of a node, one is checked by the rules for plans. A check of all
// plans would take most of the time.
const checkEvery = 16

// planErrors reports the errors of plantest.CheckPlan as violations.
type planErrors struct {
	testing.TB
	c    *cluster
	node string
}

func (planErrors) Helper() {}

func (e planErrors) Errorf(format string, args ...any) {
	e.c.violation("plan", "node "+e.node+": "+format, args...)
}
