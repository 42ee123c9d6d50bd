package scenario

import (
	"context"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// nodePeers implements system.Peers. Every message arrives at once, unless its sender or its
// receiver is down.
type nodePeers struct{ *node }

// Follow implements system.Peers. A node receives what every other node publishes.
func (nodePeers) Follow(context.Context, map[string]peer.Target) {}

// Observations implements system.Peers. The last published state of a node that is down stays,
// unless this node has restarted since it received that state.
func (p nodePeers) Observations() map[string]peer.Observation {
	w := p.world
	for name, declared := range w.base.Config.Nodes {
		other, since := w.nodes[name], w.down[name]
		seen := p.received[name]
		switch {
		case name == p.name || other != nil && other.published == nil:
			continue
		case other == nil:
			if since.Before(p.startedAt) {
				since = p.startedAt
			}
			seen.Polled, seen.Problem, seen.LastSeen = true, "it is down", since
		default:
			seen = peer.Observation{State: other.published.state, Polled: true, Received: other.published.at, LastSuccess: w.now, LastSeen: w.now}
		}
		seen.URL = declared.Address
		p.received[name] = seen
	}
	return p.received
}

// Publish implements system.Peers.
func (p nodePeers) Publish(s model.Node) {
	if p.published != nil && peer.EqualStates(&p.published.state, &s) {
		return
	}
	p.published = &publication{s, p.world.now}
	for _, other := range p.world.nodes {
		other.due = other.due || other != p.node
	}
}

// Close implements system.Peers.
func (nodePeers) Close() {}
