package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// link is the way from one node to another.
type link struct{ from, to string }

// wire is how a link is.
type wire struct {
	down bool
	slow time.Duration // added to the way of each message, at most
}

func (c *cluster) wire(from, to string) *wire {
	l := link{from, to}
	if c.links[l] == nil {
		c.links[l] = &wire{}
	}
	return c.links[l]
}

// send carries something to another node, or loses it. It is lost with the process
// that it was sent to, and with the one that sent it.
func (c *cluster) send(from, to *member, deliver func()) {
	w := c.wire(from.name, to.name)
	if w.down || !c.calm && c.one(300) {
		return
	}
	wait := c.moment()
	if w.slow > 0 {
		wait += c.between(0, w.slow)
	}
	life := from.life
	to.later(wait, func() {
		if !w.down && from.life == life {
			deliver()
		}
	})
}

// reachable reports whether a question would be answered now.
func (c *cluster) reachable(from, to string) bool {
	return c.nodes[to].up && !c.wire(from, to).down && !c.wire(to, from).down
}

// said is what a node tells of itself, as of its last round.
type said struct {
	number int
	state  peer.State
}

// hearsay is what is known of another node.
type hearsay struct {
	asked   bool
	problem string
	last    time.Duration // of the last good answer, or of the beginning
	begun   time.Duration // when its question was
	said    *said
	told    time.Duration // when that came
	asking  int           // counts the questions; answers to older ones are not heard
}

// poll is a question that waits for news.
type poll struct {
	from   *member
	knows  int
	answer func(*said)
}

const (
	pollWait  = time.Minute      // how long an answer may wait for news
	pollLimit = 80 * time.Second // how long the one who asks waits
)

// followAll begins to follow the nodes that are declared.
func (m *member) followAll() {
	for _, name := range slices.Sorted(maps.Keys(m.conf.config.Nodes)) {
		if name != m.name && m.heard[name] == nil {
			m.heard[name] = &hearsay{last: m.c.now}
			m.follow(m.heard[name], m.c.nodes[name])
		}
	}
	for name := range m.heard {
		if _, declared := m.conf.config.Nodes[name]; !declared {
			delete(m.heard, name)
		}
	}
}

// follow asks another node for its state again and again.
func (m *member) follow(h *hearsay, other *member) {
	if m.heard[other.name] != h {
		return
	}
	h.asking++
	asking, begun := h.asking, m.c.now
	heard := func(s *said) {
		if h.asking != asking {
			return
		}
		news := !h.asked || h.problem != "" || h.said == nil || s != nil && h.said.number != s.number
		h.asked, h.problem, h.begun, h.last = true, "", begun, m.c.now
		if s != nil {
			h.said, h.told = s, m.c.now
		}
		h.asking++
		if news {
			m.c.tell(m.name, "hears from %s: %s", other.name, s)
			m.later(m.c.between(0, 2*time.Second), m.kick)
		}
		m.later(m.c.between(100*time.Millisecond, time.Second), func() { m.follow(h, other) })
	}
	knows := -1
	if h.said != nil {
		knows = h.said.number
	}
	m.c.send(m, other, func() {
		other.polled(&poll{from: m, knows: knows, answer: func(s *said) { m.c.send(other, m, func() { heard(s) }) }})
	})
	limit := pollLimit
	if !other.up || m.c.wire(m.name, other.name).down {
		limit = m.c.between(0, 15*time.Second) // it is refused, or the connection breaks
	}
	m.later(limit, func() {
		if h.asking != asking || m.heard[other.name] != h {
			return
		}
		h.asking++
		if h.problem == "" {
			m.c.tell(m.name, "hears nothing from %s", other.name)
			m.kick()
		}
		h.asked, h.problem = true, "no answer"
		m.later(m.c.between(time.Second, 10*time.Second), func() { m.follow(h, other) })
	})
}

// polled answers as soon as there is news, or after a while that there is none.
func (m *member) polled(p *poll) {
	if m.said != nil && m.said.number != p.knows {
		p.answer(m.said)
		return
	}
	m.polls = append(m.polls, p)
	m.later(pollWait, func() {
		if i := slices.Index(m.polls, p); i >= 0 {
			m.polls = slices.Delete(m.polls, i, i+1)
			if m.said != nil {
				p.answer(nil)
			}
		}
	})
}

// publish tells what the last round saw, and what has been withdrawn since.
func (m *member) publish() {
	defer m.keepLeaving()
	r := &Reconciler{jobs: newJobs()}
	for key, w := range m.jobs {
		r.jobs.running[key] = &activeJob{task: Task{Action: w.action}}
	}
	s := &said{state: publishedState(m.d, m.o, &r.jobs)}
	if m.said != nil && sameNews(m.said.state, s.state) {
		s.number = m.said.number
		m.said = s
		return
	}
	m.c.publications++
	s.number = m.c.publications
	m.said = s
	polls := m.polls
	m.polls = nil
	for _, p := range polls {
		p.answer(s)
	}
}

// keepLeaving ends the withdrawals of what does not leave any more.
func (m *member) keepLeaving() {
	for key := range m.leaving {
		if w := m.jobs[key]; w == nil || !w.action.Op.Deletes() {
			delete(m.leaving, key)
		}
	}
}

// digestNow is what the node tells of its configuration.
func (m *member) digestNow() string {
	if m.conf == nil || m.broken {
		return ""
	}
	if _, declared := m.conf.config.Nodes[m.name]; !declared {
		return ""
	}
	return m.conf.digest
}

// sameNews compares what is worth telling at once.
func sameNews(a, b peer.State) bool {
	return a.Config == b.Config && slices.EqualFunc(a.Disks, b.Disks, func(a, b peer.Disk) bool {
		return a.Name == b.Name && a.UUID == b.UUID && a.Problem == b.Problem && a.UsageUnknown == b.UsageUnknown &&
			slices.EqualFunc(a.Copies, b.Copies, sameCopy)
	})
}

func sameCopy(a, b peer.Copy) bool {
	one, two := a.Failure, b.Failure
	if (one == nil) != (two == nil) || one != nil && (one.Message != two.Message || one.Action != two.Action || one.Attempts != two.Attempts) {
		return false
	}
	a.Failure, b.Failure = nil, nil
	a.PartBytes, b.PartBytes = min(a.PartBytes, 1), min(b.PartBytes, 1)
	a.VerifiedAt, b.VerifiedAt = time.Time{}, time.Time{}
	return a == b
}

// overlayPeers adds to o what the other nodes said last.
func (m *member) overlayPeers(d plan.Desired, o *plan.Observed) {
	answers := map[string]peer.Observation{}
	for name, h := range m.heard {
		a := peer.Observation{Polled: h.asked, Problem: h.problem, LastSeen: worldStart.Add(h.last)}
		if h.said != nil {
			a.State, a.LastSuccess, a.Received = h.said.state, worldStart.Add(h.begun), worldStart.Add(h.told)
		}
		answers[name] = a
	}
	m.others.mergeObservations(d, o, answers, worldStart.Add(m.c.now))
}
