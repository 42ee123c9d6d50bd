package simulation

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// route is the network from one node to another.
type route struct{ from, to string }

// link is the state of a route.
type link struct {
	down bool
	slow time.Duration // the longest additional delay of a message
}

// link returns the state of a route.
func (c *cluster) link(from, to string) *link {
	l := route{from, to}
	if c.links[l] == nil {
		c.links[l] = &link{}
	}
	return c.links[l]
}

// send delivers a message to another node after a moment, or loses it. The message is also lost
// if one of the two processes ends, or the link goes down, before it arrives.
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

// reachable reports whether a request to a node would succeed now.
func (c *cluster) reachable(from, to string) bool {
	return c.nodes[to].up && !c.link(from, to).down && !c.link(to, from).down
}

// publication is the state that a node published in its last round. The number changes with the
// state.
type publication struct {
	number int
	state  model.Node
}

// peerView is what a node knows about another one.
type peerView struct {
	polled      bool
	problem     string
	lastSeen    time.Duration // the last response, or the start of polling
	lastSuccess time.Duration // when the last successful request was sent
	publication *publication
	received    time.Duration // when the publication arrived
	polls       int           // counts the requests; the response to an older one is ignored
}

// poll is a request that waits for a new publication.
type poll struct {
	from    *node
	known   int
	respond func(*publication)
}

const (
	pollWait  = time.Minute      // how long the response to a poll may wait for a new publication
	pollLimit = 80 * time.Second // how long the node that polls waits for a response
)

// follow polls another node as long as view is in use.
func (m *node) follow(view *peerView, other *node) {
	if m.peers[other.name] != view {
		return
	}
	view.polls++
	number, sentAt, known := view.polls, m.c.now, -1
	if view.publication != nil {
		known = view.publication.number
	}
	receive := func(p *publication) {
		if view.polls == number {
			view.polls++
			m.handleResponse(view, other, p, sentAt)
		}
	}
	m.c.send(m, other, func() {
		other.handlePoll(&poll{from: m, known: known, respond: func(p *publication) { m.c.send(other, m, func() { receive(p) }) }})
	})
	limit := pollLimit
	if !other.up || m.c.link(m.name, other.name).down {
		limit = m.c.between(0, 15*time.Second) // the connection is refused or breaks
	}
	m.after(limit, func() {
		if view.polls == number && m.peers[other.name] == view {
			view.polls++
			m.handleTimeout(view, other)
		}
	})
}

// handleResponse handles the response to a poll. p is nil if there is no new publication.
func (m *node) handleResponse(view *peerView, other *node, p *publication, sentAt time.Duration) {
	changed := !view.polled || view.problem != "" || view.publication == nil || p != nil && view.publication.number != p.number
	view.polled, view.problem, view.lastSuccess, view.lastSeen = true, "", sentAt, m.c.now
	if p != nil {
		view.publication, view.received = p, m.c.now
	}
	if changed {
		m.c.logf(m.name, "receives from %s: %s", other.name, p)
		m.after(m.c.between(0, 2*time.Second), m.requestRound)
	}
	m.after(m.c.between(100*time.Millisecond, time.Second), func() { m.follow(view, other) })
}

// handleTimeout handles a poll without a response.
func (m *node) handleTimeout(view *peerView, other *node) {
	if view.problem == "" {
		m.c.logf(m.name, "gets no response from %s", other.name)
		m.requestRound()
	}
	view.polled, view.problem = true, "no answer"
	m.after(m.c.between(time.Second, 10*time.Second), func() { m.follow(view, other) })
}

// handlePoll responds at once if there is a publication that the other node does not know,
// otherwise when there is one, or with nothing after pollWait.
func (m *node) handlePoll(p *poll) {
	if m.liar != nil {
		m.liar.handlePoll(p)
		return
	}
	if m.published != nil && m.published.number != p.known {
		p.respond(m.published)
		return
	}
	m.polls = append(m.polls, p)
	m.after(pollWait, func() {
		if i := slices.Index(m.polls, p); i >= 0 { // it still waits
			m.polls = slices.Delete(m.polls, i, i+1)
			if m.published != nil {
				p.respond(nil)
			}
		}
	})
}

// publish makes a state of the node available, and responds to the waiting polls if it is new.
func (m *node) publish(state model.Node) {
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
