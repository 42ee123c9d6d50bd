package simulation

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// route is the way from one node to another.
type route struct{ from, to string }

// link is how a link is.
type link struct {
	down bool
	slow time.Duration // added to the way of each message, at most
}

func (c *cluster) link(from, to string) *link {
	l := route{from, to}
	if c.links[l] == nil {
		c.links[l] = &link{}
	}
	return c.links[l]
}

// send carries something to another node, or loses it. It is lost with the process
// that it was sent to, and with the one that sent it.
func (c *cluster) send(from, to *node, deliver func()) {
	w := c.link(from.name, to.name)
	if w.down || !c.healed && c.oneIn(300) {
		return
	}
	wait := c.moment()
	if w.slow > 0 {
		wait += c.between(0, w.slow)
	}
	life := from.starts
	to.after(wait, func() {
		if !w.down && from.starts == life {
			deliver()
		}
	})
}

// reachable reports whether a question would be answered now.
func (c *cluster) reachable(from, to string) bool {
	return c.nodes[to].up && !c.link(from, to).down && !c.link(to, from).down
}

// publication is what a node tells of itself, as of its last round.
type publication struct {
	number int
	state  peer.State
}

// peerView is what is known of another node.
type peerView struct {
	polled      bool
	problem     string
	lastSeen    time.Duration // of the last good answer, or of the beginning
	lastSuccess time.Duration // when its question was
	publication *publication
	received    time.Duration // when that came
	polls       int           // counts the questions; answers to older ones are not heard
}

// poll is a question that waits for news.
type poll struct {
	from    *node
	known   int
	respond func(*publication)
}

const (
	pollWait  = time.Minute      // how long an answer may wait for news
	pollLimit = 80 * time.Second // how long the one who asks waits
)

// follow asks another node for its state again and again.
func (m *node) follow(h *peerView, other *node) {
	if m.peers[other.name] != h {
		return
	}
	h.polls++
	asking, begun := h.polls, m.c.now
	heard := func(s *publication) {
		if h.polls != asking {
			return
		}
		news := !h.polled || h.problem != "" || h.publication == nil || s != nil && h.publication.number != s.number
		h.polled, h.problem, h.lastSuccess, h.lastSeen = true, "", begun, m.c.now
		if s != nil {
			h.publication, h.received = s, m.c.now
		}
		h.polls++
		if news {
			m.c.logf(m.name, "hears from %s: %s", other.name, s)
			m.after(m.c.between(0, 2*time.Second), m.requestRound)
		}
		m.after(m.c.between(100*time.Millisecond, time.Second), func() { m.follow(h, other) })
	}
	knows := -1
	if h.publication != nil {
		knows = h.publication.number
	}
	m.c.send(m, other, func() {
		other.handlePoll(&poll{from: m, known: knows, respond: func(s *publication) { m.c.send(other, m, func() { heard(s) }) }})
	})
	limit := pollLimit
	if !other.up || m.c.link(m.name, other.name).down {
		limit = m.c.between(0, 15*time.Second) // it is refused, or the connection breaks
	}
	m.after(limit, func() {
		if h.polls != asking || m.peers[other.name] != h {
			return
		}
		h.polls++
		if h.problem == "" {
			m.c.logf(m.name, "hears nothing from %s", other.name)
			m.requestRound()
		}
		h.polled, h.problem = true, "no answer"
		m.after(m.c.between(time.Second, 10*time.Second), func() { m.follow(h, other) })
	})
}

// handlePoll answers as soon as there is news, or after a while that there is none.
func (m *node) handlePoll(p *poll) {
	if m.published != nil && m.published.number != p.known {
		p.respond(m.published)
		return
	}
	m.polls = append(m.polls, p)
	m.after(pollWait, func() {
		if i := slices.Index(m.polls, p); i >= 0 {
			m.polls = slices.Delete(m.polls, i, i+1)
			if m.published != nil {
				p.respond(nil)
			}
		}
	})
}

// publish makes the state of a node available, and answers the questions that wait for news.
func (m *node) publish(state peer.State) {
	s := &publication{state: state}
	if m.published != nil && peer.EqualStates(&m.published.state, &s.state) {
		s.number = m.published.number
		m.published = s
		return
	}
	m.c.publications++
	s.number = m.c.publications
	m.published = s
	polls := m.polls
	m.polls = nil
	for _, p := range polls {
		p.respond(s)
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
