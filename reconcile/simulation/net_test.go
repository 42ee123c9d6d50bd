package simulation

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
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
func (c *cluster) send(from, to *node, deliver func()) {
	w := c.wire(from.name, to.name)
	if w.down || !c.healed && c.oneIn(300) {
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
	from   *node
	knows  int
	answer func(*said)
}

const (
	pollWait  = time.Minute      // how long an answer may wait for news
	pollLimit = 80 * time.Second // how long the one who asks waits
)

// follow asks another node for its state again and again.
func (m *node) follow(h *hearsay, other *node) {
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
			m.c.logf(m.name, "hears from %s: %s", other.name, s)
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
			m.c.logf(m.name, "hears nothing from %s", other.name)
			m.kick()
		}
		h.asked, h.problem = true, "no answer"
		m.later(m.c.between(time.Second, 10*time.Second), func() { m.follow(h, other) })
	})
}

// polled answers as soon as there is news, or after a while that there is none.
func (m *node) polled(p *poll) {
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

// publish makes the state of a node available, and answers the questions that wait for news.
func (m *node) publish(state peer.State) {
	s := &said{state: state}
	if m.said != nil && peer.EqualStates(&m.said.state, &s.state) {
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

// nodeAt returns the node with a URL.
func (c *cluster) nodeAt(url string) *node {
	for _, name := range c.names {
		if urlOf(name) == url {
			return c.nodes[name]
		}
	}
	panic("no node is at " + url)
}
