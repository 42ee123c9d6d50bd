package reconcile

import (
	"context"
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// firstResponseTimeout is how long a single run waits for the first answers.
const firstResponseTimeout = 3 * time.Second

// peers are the other nodes, each asked by itself. The zero value asks nobody.
type peers struct {
	client    *peer.Client
	watch     *peer.Poller
	addresses map[string]string    // the addresses that watch follows
	states    map[string]peerState // by node
}

// peerState is what was made of one answer of a node.
type peerState struct {
	at          time.Time
	clockOffset time.Duration // this node's clock of that one's
	node        schema.Node
	disks       map[schema.DiskRef]plan.Disk
}

// SetPeers makes r ask other nodes through client. It is to be called once, before the
// first look.
func (r *Reconciler) SetPeers(client *peer.Client) {
	r.peers = peers{client: client, watch: peer.NewPoller(client), states: map[string]peerState{}}
}

// Follow asks the other nodes that d declares, and from now on no others, until ctx
// ends. It does not wait for answers: Changed tells of them.
func (r *Reconciler) Follow(ctx context.Context, d plan.Desired) {
	s := &r.peers
	asked := s.addressesOf(d)
	if s.watch == nil || s.addresses != nil && maps.Equal(asked, s.addresses) {
		return
	}
	s.addresses = asked
	s.watch.SetPeers(ctx, asked)
	maps.DeleteFunc(s.states, func(name string, _ peerState) bool { _, ok := asked[name]; return !ok })
}

// Changed tells that another node said something new, or fell silent. Several changes
// may come as one.
func (r *Reconciler) Changed() <-chan struct{} {
	if r.peers.watch == nil {
		return nil
	}
	return r.peers.watch.Changed()
}

// WaitForPeers asks the other nodes that d declares, as Follow does, and waits until each has
// answered, or cannot be asked, or has taken too long.
func (r *Reconciler) WaitForPeers(ctx context.Context, d plan.Desired) {
	r.Follow(ctx, d)
	over := time.NewTimer(firstResponseTimeout)
	defer over.Stop()
	for r.peers.waiting() {
		select {
		case <-r.Changed():
		case <-over.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *peers) waiting() bool {
	if s.watch == nil {
		return false
	}
	for _, a := range s.watch.Observations() {
		if !a.Polled {
			return true
		}
	}
	return false
}

// addressesOf are those of the declared nodes that are not this one.
func (s *peers) addressesOf(d plan.Desired) map[string]string {
	at := map[string]string{}
	for name, node := range d.Config.Nodes {
		if name != d.Node {
			at[name] = node.Address
		}
	}
	return at
}

func (s *peers) close() {
	if s.watch != nil {
		s.watch.Close()
		s.client.Close()
	}
}

// query is what a job needs to ask these nodes.
func (s *peers) query(d plan.Desired, nodes []string) job.Query {
	a := job.Query{Client: s.client, Nodes: nodes}
	for _, name := range nodes {
		if s.client != nil {
			a.Addresses = append(a.Addresses, peer.Address{Node: name, URL: d.Config.Nodes[name].Address})
		}
	}
	return a
}
