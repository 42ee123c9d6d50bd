package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// member is one node: what lies in its config directory, its wall clock, and, as long
// as it is up, a manager as Loop and Reconciler are one.
type member struct {
	c      *cluster
	name   string
	up     bool
	life   int           // counts starts
	wall   time.Duration // how far the wall clock is off
	dir    *declared     // what is in the directory
	spoilt bool          // or rather what was there before somebody broke it

	conf     *declared     // what was taken; nil: nothing yet
	took     time.Duration // when
	broken   bool          // it was spoilt at the last look
	next     *declared     // to be taken by the next round
	gap      bool          // conf was taken from a broken directory at the start
	missing  string        // the image that is broken in it; "": all is unknown
	clocks   clock         // of it only what it counts
	clock    time.Duration // how far it was off at the last look
	removals *configdir.RemovalConfirmer
	tries    map[plan.CopyRef]failureRecord // their times are of the steady clock
	unmarked map[plan.CopyRef]usageOnDisk
	byHand   map[plan.CopyRef]bool
	asked    []*uploader                // that the next round has to answer
	uploads  map[plan.CopyRef]*uploader // that were begun, until their jobs end
	left     map[string]time.Duration   // when images left the configuration
	jobs     map[plan.CopyRef]*work
	leaving  map[plan.CopyRef]bool
	ended    []ending
	heard    map[string]*hearsay
	others   peers
	own      map[string]schema.Disk           // as last declared
	missed   map[schema.DiskRef]time.Duration // since when disks have a problem

	busy, due bool // a round is under way; another one has to follow
	d         plan.Desired
	o         plan.Observed
	plan      plan.Plan
	rounds    int
	wakes     int // counts the waits that were given up for others

	said  *said // what it tells those who ask
	polls []*poll
}

// ending is how a job ended, or that it asked and has to be decided on.
type ending struct {
	w     *work
	err   error
	asked bool
}

// later does something after wait, unless the node went down meanwhile.
func (m *member) later(wait time.Duration, do func()) {
	life := m.life
	m.c.after(wait, func() {
		if m.up && m.life == life {
			do()
		}
	})
}

func (m *member) soon(do func()) { m.later(m.c.moment(), do) }

// start begins a process: it knows what lies on its disks and in its directory.
func (m *member) start() {
	if m.up {
		return
	}
	m.life, m.up = m.life+1, true
	m.asked, m.uploads = nil, map[plan.CopyRef]*uploader{}
	m.conf, m.next, m.broken, m.gap, m.missing, m.clocks = nil, nil, false, false, "", clock{}
	m.removals, m.tries, m.unmarked, m.byHand = &configdir.RemovalConfirmer{}, map[plan.CopyRef]failureRecord{}, map[plan.CopyRef]usageOnDisk{}, map[plan.CopyRef]bool{}
	m.jobs, m.leaving, m.ended, m.heard = map[plan.CopyRef]*work{}, map[plan.CopyRef]bool{}, nil, map[string]*hearsay{}
	m.missed = map[schema.DiskRef]time.Duration{}
	m.others = newPeers(nil)
	m.busy, m.due, m.plan, m.rounds, m.said, m.polls = false, false, plan.Plan{}, 0, nil, nil
	m.clock = m.wall
	m.c.tell(m.name, "starts")
	m.c.noteReturn(m)
	m.left = map[string]time.Duration{}
	if m.dir == nil {
		m.dir = m.c.head()
	}
	m.next = m.dir
	m.later(m.c.between(0, time.Minute), m.tick)
	m.kick()
}

// crash ends the process at once. What it was about to delete is where it was when it
// starts again.
func (m *member) crash() {
	if !m.up {
		return
	}
	m.c.tell(m.name, "crashes")
	m.up = false
	for ref := range m.own {
		if d := m.c.drives[schema.DiskRef{Node: m.name, Disk: ref}]; d != nil {
			for _, s := range d.slots {
				s.aside = false
			}
		}
	}
	m.c.removals = slices.DeleteFunc(m.c.removals, func(r *removal) bool { return r.member == m })
	m.excuse()
}

// tick looks at the directory, where events may have been missed.
func (m *member) tick() {
	m.lookAtRemovals()
	m.kick()
	m.later(m.c.between(50*time.Second, 70*time.Second), m.tick)
}

func (m *member) lookAtRemovals() {
	if m.conf != nil && m.desired().Allowed == schema.Everything {
		m.removals.Observe(m.steady(), m.steady(), declaredNames(m.conf.config))
	}
}

// receive puts a configuration into the directory.
func (m *member) receive(d *declared) {
	if m.dir != nil && d.number < m.dir.number {
		return
	}
	m.dir = d
	if m.up && !m.spoilt {
		m.next = d
		m.kick()
	}
}

// breakDir makes a mistake in the directory, and mendDir mends it.
func (m *member) breakDir() {
	m.spoilt = true
	m.c.tell(m.name, "the configuration breaks")
	m.kick()
}

func (m *member) mendDir() {
	if m.spoilt {
		m.c.tell(m.name, "the configuration is mended")
		m.spoilt, m.next = false, m.dir
		m.kick()
	}
}

// take makes what is in the directory the desired state.
func (m *member) take() {
	next := m.next
	m.next = nil
	if m.spoilt != m.broken {
		m.broken = m.spoilt
		*m.removals = configdir.RemovalConfirmer{}
		m.c.tell(m.name, "sees that the configuration is %s", ifSo(m.broken, "broken"))
	}
	if next == nil || next == m.conf && !m.gap {
		return
	}
	m.gap, m.missing = m.conf == nil && m.broken, ""
	if m.gap && m.c.one(2) {
		m.missing, _ = m.c.declaredName(&next.config)
	}
	if m.conf != nil {
		for name := range m.conf.config.Images {
			m.left[name] = m.c.now
		}
	}
	m.conf, m.took = next, m.c.now
	if node, ok := next.config.Nodes[m.name]; ok || m.own == nil {
		m.own = node.Disks
	}
	m.c.tell(m.name, "takes configuration %d (%s)%s", next.number, next.digest, ifSo(m.broken, ", which is broken"))
	m.lookAtRemovals()
	m.followAll()
}

// desired is what Desire and Loop make of the configuration.
func (m *member) desired() plan.Desired {
	d := plan.Desired{Node: m.name, Config: m.conf.config, Digest: m.conf.digest, Allowed: schema.Everything,
		Invalid: map[string]schema.InvalidImage{}, Removed: m.removals.Confirmed, Cleanup: m.byHand, Uploads: m.asksFor()}
	if m.broken {
		d.Allowed, d.Digest = schema.NoDeletions, ""
		if m.gap && m.missing == "" {
			d.Allowed = schema.ObserveOnly
		}
		if m.missing != "" {
			d.Config.Images = maps.Clone(d.Config.Images)
			delete(d.Config.Images, m.missing)
			d.Invalid[m.missing] = schema.InvalidImage{Name: m.missing}
		}
	}
	if _, declared := d.Config.Nodes[m.name]; !declared {
		d.Allowed = schema.ObserveOnly
		d.Config.Nodes = maps.Clone(d.Config.Nodes)
		d.Config.Nodes[m.name] = schema.Node{AllowScheduling: true, Disks: m.own}
	}
	return d
}

func (m *member) wallNow() time.Time { return worldStart.Add(m.c.now + m.wall) }

func (m *member) steady() time.Time { return worldStart.Add(m.c.now) }

// look is what Reconciler.Look sees.
func (m *member) look(d plan.Desired) plan.Observed {
	if m.wall != m.clock {
		m.clocks.steps++
	}
	m.clock = m.wall
	o := plan.Observed{Now: m.wallNow(), Disks: map[schema.DiskRef]plan.Disk{},
		Peers: map[string]plan.Peer{}, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}, Syncing: map[plan.CopyRef]bool{}, BeingRead: map[plan.CopyRef]bool{}}
	m.lookAtDisks(o.Disks)
	for key, t := range m.tries {
		if !plan.SameImage(t.image, m.conf.config.Images[key.ID.Name]) {
			delete(m.tries, key)
			continue
		}
		o.Failures[key] = shifted(t.Failure, m.wall)
	}
	for key, w := range m.jobs {
		o.Running[key] = true
		if w.action.Op == plan.Sync {
			o.Syncing[key] = true
		}
		if w.action.LocalSource != (plan.CopyRef{}) {
			o.BeingRead[w.action.LocalSource] = true
		}
	}
	m.overlayPeers(d, &o)
	o.CannotPrepare = m.unable(d)
	return o
}

// lookAtDisks adds what lies on the own disks, as it has to be told.
func (m *member) lookAtDisks(disks map[schema.DiskRef]plan.Disk) {
	for name := range m.own {
		ref := schema.DiskRef{Node: m.name, Disk: name}
		seen := m.c.sees(m.c.drives[ref])
		seen.ClockStepped = m.clocks.outdated(seen.UUID)
		for id, v := range seen.Copies {
			if m.leaving[plan.CopyRef{Disk: ref, ID: id}] {
				v.Leaving = true
				seen.Copies[id] = v
			}
		}
		seen.ProblemFor = m.away(ref, seen)
		disks[ref] = seen
	}
	for key, mark := range m.unmarked {
		if seen := disks[key.Disk]; seen.UUID == mark.diskUUID {
			seen.ApplyUsage(mark.Usage)
		}
	}
}

// away is for how long a disk has had a problem.
func (m *member) away(ref schema.DiskRef, seen plan.Disk) time.Duration {
	since, missed := m.missed[ref]
	switch {
	case seen.Problem == "":
		delete(m.missed, ref)
		return 0
	case !missed:
		m.missed[ref] = m.c.now
		return 0
	}
	return m.c.now - since
}

func shifted(t plan.Failure, by time.Duration) plan.Failure {
	if !t.Since.IsZero() {
		t.Since = t.Since.Add(by)
	}
	if !t.RetryAt.IsZero() {
		t.RetryAt = t.RetryAt.Add(by)
	}
	return t
}
