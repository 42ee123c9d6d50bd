package simulation

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// node is one machine: its config directory, its wall clock and, while it is up, a process that
// runs a reconcile.Loop.
type node struct {
	c           *cluster
	name        string
	up          bool
	starts      int           // counts starts
	clockOffset time.Duration // how far the wall clock is off
	directory   *declaration  // what is in the directory
	dirBroken   bool          // or rather what was there before somebody broke it

	loop   *reconcile.Loop
	ctx    context.Context
	cancel context.CancelFunc

	// What the loop was told of the directory.
	applied       *declaration  // nil: nothing yet
	appliedAt     time.Duration // when
	appliedBroken bool
	next          *declaration // what the next round applies
	reread        bool         // the next round applies a read without a change
	brokenAtStart bool         // conf was broken at the start
	invalidImage  string       // the image that is broken in it; "": all is unknown
	ownDisks      map[string]schema.Disk
	removedAt     map[string]time.Duration // when images left the configuration

	busy, due bool // a round runs; another one has to follow
	toBegin   []func()
	desired   plan.Desired // of the last round
	observed  plan.Observed
	plan      plan.Plan
	rounds    int
	wakes     int // counts the waits that were given up for others

	jobs              map[plan.CopyRef]*runningJob
	requestedCleanups map[plan.CopyRef]bool
	uploads           map[plan.CopyRef]*uploader // that were begun, until their jobs end
	failedJobs        map[plan.CopyRef]bool      // jobs that failed since the last round

	peers     map[string]*peerView
	published *publication // what it publishes
	polls     []*poll

	observedDigest string // the digest of the configuration of the last observation
	observing      bool   // a round observes
	listed         []listing
	observations   int // of this round
	clockSteps     int // how often the wall clock was set in this life
	observedOffset time.Duration
	recorded       map[string]int // steps up to which the times on a disk are right, by uuid
	unwritten      map[unwrittenKey]bool
}

// after does something after wait, unless the process ended meanwhile.
func (m *node) after(wait time.Duration, do func()) {
	life := m.starts
	m.c.after(wait, func() {
		if m.up && m.starts == life {
			do()
		}
	})
}

func (m *node) afterMoment(do func()) { m.after(m.c.moment(), do) }

// start begins a process. It knows only what is on its disks and in its directory.
func (m *node) start() {
	if m.up {
		return
	}
	m.starts, m.up = m.starts+1, true
	m.ctx, m.cancel = context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	m.loop = reconcile.NewLoop(reconcile.NewWith(m.system(), log), reconcile.LoopOptions{Interval: time.Minute, Node: m.name, Log: log})
	m.applied, m.next, m.appliedBroken, m.reread, m.brokenAtStart, m.invalidImage = nil, nil, false, false, false, ""
	m.removedAt = map[string]time.Duration{}
	m.busy, m.due, m.toBegin = false, false, nil
	m.desired, m.observed, m.plan, m.rounds = plan.Desired{}, plan.Observed{}, plan.Plan{}, 0
	m.jobs, m.requestedCleanups, m.uploads, m.failedJobs = map[plan.CopyRef]*runningJob{}, map[plan.CopyRef]bool{}, map[plan.CopyRef]*uploader{}, map[plan.CopyRef]bool{}
	m.peers, m.published, m.polls = map[string]*peerView{}, nil, nil
	m.observedDigest, m.observing, m.listed = "", false, nil
	m.clockSteps, m.observedOffset, m.recorded, m.unwritten = 0, m.clockOffset, map[string]int{}, map[unwrittenKey]bool{}
	m.c.logf(m.name, "starts")
	m.c.countReturn(m)
	if m.directory == nil {
		m.directory = m.c.latest()
	}
	m.next = m.directory
	m.after(m.c.between(0, time.Minute), m.readPeriodically)
	m.requestRound()
}

// crash ends the process at once. A folder that it was about to delete has its name again when it
// starts the next time.
func (m *node) crash() {
	if !m.up {
		return
	}
	m.c.logf(m.name, "crashes")
	m.up = false
	m.cancel()
	for ref := range m.ownDisks {
		if d := m.c.disks[schema.DiskRef{Node: m.name, Disk: ref}]; d != nil {
			for _, s := range d.Copies {
				s.Aside = false
			}
		}
	}
	m.c.deletions = slices.DeleteFunc(m.c.deletions, func(r *deletion) bool { return r.node == m })
	m.excuseCopies()
}

// readPeriodically reads the directory, where events may have been missed.
func (m *node) readPeriodically() {
	m.reread = true
	m.requestRound()
	m.after(m.c.between(50*time.Second, 70*time.Second), m.readPeriodically)
}

// receive puts a configuration into the directory.
func (m *node) receive(d *declaration) {
	if m.directory != nil && d.number < m.directory.number {
		return
	}
	m.directory = d
	if m.up && !m.dirBroken {
		m.next = d
		m.requestRound()
	}
}

// breakDir makes a mistake in the directory, and mendDir corrects it.
func (m *node) breakDir() {
	m.dirBroken = true
	m.c.logf(m.name, "the configuration breaks")
	m.requestRound()
}

func (m *node) repairDir() {
	if m.dirBroken {
		m.c.logf(m.name, "the configuration is mended")
		m.dirBroken, m.next = false, m.directory
		m.requestRound()
	}
}

// requestRound requests a round.
func (m *node) requestRound() {
	switch {
	case !m.up:
	case m.busy:
		m.due = true
	default:
		m.busy = true
		m.afterMoment(func() { m.c.spawn(&fiber{node: m}, m.round) })
	}
}

// round does what the select of Loop.Run does for an event.
func (m *node) round() {
	if !m.configure() {
		return
	}
	m.observing, m.listed = true, nil
	if m.clockOffset != m.observedOffset {
		m.clockSteps++
	}
	m.observedOffset = m.clockOffset
	m.observations = 0
	wait := m.loop.Step(m.ctx)
	m.observing, m.busy = false, false
	m.failedJobs = map[plan.CopyRef]bool{}
	v := m.loop.View()
	m.desired, m.observed, m.plan, m.rounds = v.Desired, v.Observed, v.Plan, v.Rounds
	if m.rounds%checkEvery == 0 {
		plantest.CheckPlan(planErrors{c: m.c, node: m.name}, m.desired, m.observed, m.plan)
	}
	m.noteUnwritten()
	m.stopJobs()
	begun := m.toBegin
	m.toBegin = nil
	for _, begin := range begun {
		begin()
	}
	m.checkSingleFirstCopy()
	m.wakeAfter(wait, v)
	if m.due {
		m.due = false
		m.after(m.c.between(0, 2*time.Second), m.requestRound)
	}
}

// wakeAfter wakes the node when a wait of its plan is over.
func (m *node) wakeAfter(wait time.Duration, _ *status.View) {
	m.wakes++
	wakes := m.wakes
	if wait < time.Minute { // otherwise the tick comes first
		m.after(wait, func() {
			if m.wakes == wakes {
				m.requestRound()
			}
		})
	}
}

// configure applies what is in the directory. It returns false if the process ended.
func (m *node) configure() bool {
	changed, reading := m.takeConfig(), reconcile.Reading{Began: m.steady(), Ended: m.steady()}
	if changed {
		reading.Result = m.result()
	}
	if !changed && !m.reread {
		return true
	}
	m.reread = false
	if _, err := m.loop.Apply(m.ctx, reading); err != nil {
		m.c.logf(m.name, "cannot start: %v", err)
		m.crash()
		m.c.after(m.c.between(5*time.Second, 30*time.Second), m.start)
		return false
	}
	return true
}

// takeConfig makes what is in the directory what the loop is told next, and reports whether it changed.
func (m *node) takeConfig() (changed bool) {
	next := m.next
	m.next = nil
	if m.dirBroken != m.appliedBroken {
		m.appliedBroken, changed = m.dirBroken, true
		m.c.logf(m.name, "sees that the configuration is %s", textIf(m.appliedBroken, "broken"))
	}
	if next == nil || next == m.applied && !m.brokenAtStart {
		return changed
	}
	m.brokenAtStart, m.invalidImage = m.applied == nil && m.appliedBroken, ""
	if m.brokenAtStart && m.c.oneIn(2) {
		m.invalidImage, _ = m.c.randomImageName(&next.config)
	}
	if m.applied != nil {
		for name := range m.applied.config.Images {
			m.removedAt[name] = m.c.now
		}
	}
	m.applied, m.appliedAt = next, m.c.now
	if node, ok := next.config.Nodes[m.name]; ok || m.ownDisks == nil {
		m.ownDisks = node.Disks
	}
	m.c.logf(m.name, "takes configuration %d (%s)%s", next.number, next.digest, textIf(m.appliedBroken, ", which is broken"))
	return true
}

// allowed is how far the configuration may be acted on.
func (m *node) allowed() schema.Allowed {
	_, declared := m.applied.config.Nodes[m.name]
	switch {
	case !declared, m.appliedBroken && m.brokenAtStart && m.invalidImage == "":
		return schema.ObserveOnly
	case m.appliedBroken:
		return schema.NoDeletions
	}
	return schema.Everything
}

// result is what package schema makes of the directory.
func (m *node) result() *schema.Result {
	r := &schema.Result{Config: m.applied.config, Digest: m.applied.digest, Allowed: schema.Everything}
	if !m.appliedBroken {
		return r
	}
	r.Digest, r.Allowed = "", schema.NoDeletions
	if m.brokenAtStart && m.invalidImage == "" {
		r.Allowed = schema.ObserveOnly
	}
	if m.invalidImage != "" {
		r.Config.Images = maps.Clone(r.Config.Images)
		delete(r.Config.Images, m.invalidImage)
		r.Invalid = []schema.InvalidImage{{Name: m.invalidImage}}
	}
	return r
}

// appliedDigest is the digest of what the loop was told of the directory.
func (m *node) appliedDigest() string {
	if m.applied == nil || m.appliedBroken {
		return ""
	}
	if _, declared := m.applied.config.Nodes[m.name]; !declared {
		return ""
	}
	return m.applied.digest
}

// leaving reports whether a copy of the node is withdrawn.
func (m *node) leaving(key plan.CopyRef) bool {
	return m.loop.PeerNode().Leaving(key.Disk.Disk, key.ID)
}

// suspects reports whether a copy of the node gave other bytes than it should have.
func (m *node) suspects(key plan.CopyRef) bool {
	return plan.Suspects(m.observed.Failures)[key]
}

func (m *node) sortedJobs() []*runningJob {
	works := slices.Collect(maps.Values(m.jobs))
	slices.SortFunc(works, func(a, b *runningJob) int {
		return cmp.Or(plan.CompareDisks(a.key.Disk, b.key.Disk), plan.CompareIDs(a.key.ID, b.key.ID))
	})
	return works
}

// listing is what a round saw on a disk.
type listing struct {
	ref   schema.DiskRef
	drive *Disk
	reconcile.Contents
}

// noteListing notes for each copy that a round listed what is true by a clock that nobody sets:
// when it was used, and since when it is surplus. Usage is recorded by the first listing of a
// round only.
func (m *node) noteListing() {
	if !m.observing {
		return
	}
	listed := m.listed
	m.listed = nil
	for _, job := range m.jobs {
		if job.query != nil && job.query.ended && !job.confirmed {
			job.deletion.recordListing(m, m.appliedDigest())
		}
	}
	if m.observations++; m.observations > 1 {
		return
	}
	for _, one := range listed {
		for _, c := range one.Copies {
			s, key := one.drive.Copies[c.ID], plan.CopyRef{Disk: one.ref, ID: c.ID}
			if _, used := one.Users.InUse(c.ID); used {
				m.c.history(s).usedAt = m.c.now
			}
			image, declared := m.applied.config.Images[c.ID.Name]
			declared = declared && c.ID.Name != m.invalidImage
			failing := m.failedJobs[key] || m.observed.Failures[key].Fault == plan.FaultDisk
			switch {
			case m.allowed() == schema.ObserveOnly:
			case declared && image.ID == c.ID && c.State == disk.Ready && !failing && m.c.isAlwaysDesired(m.applied, image, one.ref):
				m.c.history(s).surplusAt = 0
			case m.allowed() == schema.Everything && m.c.history(s).surplusAt == 0:
				m.c.history(s).surplusAt = m.c.now
			}
		}
	}
}

// unwrittenKey names a copy on a disk, wherever the disk is.
type unwrittenKey struct {
	uuid string
	id   disk.ID
}

// noteUnwritten finds the copies whose usage a round knew and could not record, and the disks
// on which the times are right.
func (m *node) noteUnwritten() {
	for name := range m.ownDisks {
		ref := schema.DiskRef{Node: m.name, Disk: name}
		seen, d := m.observed.Disks[ref], m.c.disks[ref]
		if seen.Problem != "" || d == nil || d.UUID != seen.UUID {
			continue
		}
		behind := m.desired.Allowed == schema.ObserveOnly
		for id, c := range seen.Copies {
			s := d.Copies[id]
			pending := s != nil && (s.Usage.InUse != c.InUseRecorded || !s.Usage.LastUsed.Equal(c.LastUsed) || !s.Usage.SurplusSince.Equal(c.SurplusSince) || s.Usage.By != c.ClockNode)
			if behind = behind || pending; pending {
				m.unwritten[unwrittenKey{d.UUID, id}] = true
			} else {
				delete(m.unwritten, unwrittenKey{d.UUID, id})
			}
		}
		if !behind {
			m.recorded[d.UUID] = m.clockSteps
		}
	}
}

// excuseCopies notes the copies about which a process that ended knew more than it could record. What
// it would have recorded is lost, and the next process cannot know that.
func (m *node) excuseCopies() {
	for _, d := range m.c.disks {
		outdated := m.recorded[d.UUID] < m.clockSteps || m.clockOffset != m.observedOffset
		for id, s := range d.Copies {
			h := m.c.history(s)
			h.excused = h.excused || s.Usage.By == m.name && outdated || m.unwritten[unwrittenKey{d.UUID, id}]
		}
	}
}

// checkEvery is which of the plans of a node are held against the rules for plans: to check all
// would take most of the time.
const checkEvery = 16

// planErrors makes what plantest.CheckPlan finds a broken rule of the cluster.
type planErrors struct {
	testing.TB
	c    *cluster
	node string
}

func (planErrors) Helper() {}

func (e planErrors) Errorf(format string, args ...any) {
	e.c.violation("plan", "node "+e.node+": "+format, args...)
}
