package reconcile

import (
	"context"
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// meetTime is how long a single run waits for the first answers.
const meetTime = 3 * time.Second

// others are the other nodes, each asked by itself. The zero value asks nobody.
type others struct {
	client *peer.Client
	watch  *peer.Poller
	asked  map[string]string // the addresses that watch follows
	told   map[string]toldAt // by node
}

// toldAt is what was made of one answer of a node.
type toldAt struct {
	at    time.Time
	ahead time.Duration // this node's clock of that one's
	node  schema.Node
	disks map[schema.DiskRef]Disk
}

// Join makes r ask other nodes through client. It is to be called once, before the
// first look.
func (r *Reconciler) Join(client *peer.Client) {
	r.others = others{client: client, watch: peer.NewPoller(client), told: map[string]toldAt{}}
}

// Follow asks the other nodes that d declares, and from now on no others, until ctx
// ends. It does not wait for answers: Changed tells of them.
func (r *Reconciler) Follow(ctx context.Context, d Desired) {
	s := &r.others
	asked := s.addresses(d)
	if s.watch == nil || s.asked != nil && maps.Equal(asked, s.asked) {
		return
	}
	s.asked = asked
	s.watch.SetPeers(ctx, asked)
	maps.DeleteFunc(s.told, func(name string, _ toldAt) bool { _, ok := asked[name]; return !ok })
}

// Changed tells that another node said something new, or fell silent. Several changes
// may come as one.
func (r *Reconciler) Changed() <-chan struct{} {
	if r.others.watch == nil {
		return nil
	}
	return r.others.watch.Changed()
}

// Meet asks the other nodes that d declares, as Follow does, and waits until each has
// answered, or cannot be asked, or has taken too long.
func (r *Reconciler) Meet(ctx context.Context, d Desired) {
	r.Follow(ctx, d)
	over := time.NewTimer(meetTime)
	defer over.Stop()
	for r.others.unasked() {
		select {
		case <-r.Changed():
		case <-over.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (s *others) unasked() bool {
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

// addresses are those of the declared nodes that are not this one.
func (s *others) addresses(d Desired) map[string]string {
	at := map[string]string{}
	for name, node := range d.Config.Nodes {
		if name != d.Node {
			at[name] = node.Address
		}
	}
	return at
}

func (s *others) close() {
	if s.watch != nil {
		s.watch.Close()
		s.client.Close()
	}
}

// asking is what a job needs to ask these nodes.
func (s *others) asking(d Desired, nodes []string) asking {
	a := asking{client: s.client, nodes: nodes}
	for _, name := range nodes {
		if s.client != nil {
			a.at = append(a.at, peer.Address{Node: name, URL: d.Config.Nodes[name].Address})
		}
	}
	return a
}
