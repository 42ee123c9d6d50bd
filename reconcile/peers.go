package reconcile

import (
	"cmp"
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/evidence"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// peers are the other nodes, each as it publishes its own state.
type peers struct {
	system system.Peers
	states map[string]peerState // by node
	ledger *evidence.Ledger
	// otherConfig has the nodes that have no config digest, or another one than this node, and since when, by
	// the steady clock.
	otherConfig map[string]time.Time
}

func newPeers(s system.Peers, ledger *evidence.Ledger) peers {
	return peers{system: s, states: map[string]peerState{}, ledger: ledger, otherConfig: map[string]time.Time{}}
}

// peerState is the last published state of a node, converted for the planner.
type peerState struct {
	state       model.Node
	clockOffset time.Duration // this node's wall clock minus that node's
	node        schema.Node   // its declaration when its state was converted
	disks       map[ident.DiskRef]model.Disk
}

// follow polls exactly the other nodes that d declares, until ctx ends. It does not wait for
// responses.
func (s *peers) follow(ctx context.Context, d plan.Desired) {
	nodes := targetsOf(d)
	s.system.Follow(ctx, nodes)
	maps.DeleteFunc(s.states, func(name string, _ peerState) bool { _, ok := nodes[name]; return !ok })
	maps.DeleteFunc(s.otherConfig, func(name string, _ time.Time) bool { _, ok := nodes[name]; return !ok })
}

// targetsOf returns the declared nodes other than this one, with their addresses and with what this
// node can use of their states.
func targetsOf(d plan.Desired) map[string]peer.Target {
	images := make(map[string]string, len(d.Config.Images))
	kept := 0
	for name, image := range d.Config.Images {
		images[name] = image.ID.UUID
		kept += image.KeepGenerations
	}
	at := map[string]peer.Target{}
	for name, node := range d.Config.Nodes {
		if name == d.Node {
			continue
		}
		disks := make(map[string]bool, len(node.Disks))
		for disk := range node.Disks {
			disks[disk] = true
		}
		at[name] = peer.Target{URL: node.Address, Scope: peer.Scope{Disks: disks, Images: images, Listed: len(d.Config.Settings.PruneConfirmed), Kept: kept}}
	}
	return at
}

// mergeInto adds the last observations of the other nodes to o. nil means that there are none. For a node that does not respond
// it adds the last state of that node. now is the steady time of o.
func (s *peers) mergeInto(d plan.Desired, o *plan.Observed, observations map[string]peer.Observation, now time.Time) {
	if observations == nil {
		return
	}
	o.Peers = map[string]model.Peer{}
	for name := range d.Config.Nodes {
		if name == d.Node {
			continue
		}
		a := observations[name]
		p := model.Peer{Queried: a.Polled, Problem: a.Problem, ConfigDigest: a.State.ConfigDigest, Outdated: a.Outdated, Omitted: a.State.Omitted}
		if p.Problem == "" && !p.Queried {
			p.Problem = "not queried yet"
		}
		if p.Problem != "" && !a.LastSeen.IsZero() {
			p.UnreachableSince = o.Now.Add(min(0, a.LastSeen.Sub(now)))
		}
		if since := s.trackConfig(d, name, p, now); !since.IsZero() {
			p.OtherConfigSince = o.Now.Add(since.Sub(now))
		}
		switch {
		case a.LastSuccess.IsZero(): // it never responded
		case p.Problem == "":
			p.LastResponse = o.Now.Add(a.LastSeen.Sub(now))
		default: // LastSeen may be the end of a request that failed after a part of the response
			p.LastResponse = o.Now.Add(a.LastSuccess.Sub(now))
		}
		o.Peers[name] = p
		at := o.Now.Add(a.Received.Sub(now))
		maps.Copy(o.Disks, s.disksOf(d, name, a, at))
		mergeJobs(*o, d, a, at)
	}
	s.ledger.Apply(d, o)
	o.FindDisputedDisks() // also a disk of this node, if a disk of another node has its uuid (I10)
}

// trackConfig returns since when a node has another configuration, by the steady clock: see model.Peer. The
// time begins when the node responds with another digest, so neither a pause of this process nor a restart
// of the node counts. The time ends when the node has the same digest. It goes on while the node does not
// respond, and when its digest changes: otherwise a node could delay others for ever. While this node has
// no digest, it cannot compare, and the time begins again.
func (s *peers) trackConfig(d plan.Desired, name string, p model.Peer, now time.Time) time.Time {
	since, differs := s.otherConfig[name]
	switch {
	case d.Digest == "", p.ConfigDigest == d.Digest:
		delete(s.otherConfig, name)
		return time.Time{}
	case !differs && p.Responds():
		s.otherConfig[name] = now
		return now
	}
	return since
}

// disksOf returns the disks of a node from its last state. at is the wall time when this state
// was received. disksOf converts a state once, because most rounds find no new state. It converts
// it again if a clock was set or other disks are declared.
func (s *peers) disksOf(d plan.Desired, name string, a peer.Observation, at time.Time) map[ident.DiskRef]model.Disk {
	node := d.Config.Nodes[name]
	last, ok := s.states[name]
	offset := at.Sub(a.State.Clock)
	sameDisks := slices.Equal(slices.Sorted(maps.Keys(last.node.Disks)), slices.Sorted(maps.Keys(node.Disks)))
	sameResponse := reflect.ValueOf(last.state.Disks).Pointer() == reflect.ValueOf(a.State.Disks).Pointer()
	if !ok || (offset-last.clockOffset).Abs() > maxSkew || !sameResponse || !sameDisks {
		disks := declaredDisks(node, name, a.State)
		for ref, seen := range disks {
			if seen.Problem != "" { // the needs of the last listing of this disk stay (U7)
				seen.Needs = last.disks[ref].Needs
				disks[ref] = seen
			}
		}
		last = peerState{state: a.State, clockOffset: offset, node: node, disks: disks}
		if !a.State.Clock.IsZero() {
			last.translate(offset)
		}
		s.states[name] = last
	}
	return last.disks
}

// translate converts the times of the copies to this node's clock.
func (t peerState) translate(offset time.Duration) {
	shift := func(times ...*time.Time) {
		for _, at := range times {
			if !at.IsZero() {
				*at = at.Add(offset)
			}
		}
	}
	for _, seen := range t.disks {
		for id, c := range seen.Copies {
			shift(c.Times()...)
			seen.Copies[id] = c
		}
		for id, need := range seen.Needs {
			shift(&need.Since)
			seen.Needs[id] = need
		}
	}
}

// mergeJobs adds the jobs and failures of a node to o. at is the wall time when they were received.
func mergeJobs(o plan.Observed, d plan.Desired, a peer.Observation, at time.Time) {
	sameConfig := a.State.ConfigDigest == d.Digest && d.Digest != ""
	for name, seen := range a.State.Disks {
		ref := ident.DiskRef{Node: a.State.Node, Disk: name}
		if _, declared := d.Disk(ref); !declared {
			continue
		}
		for id, c := range seen.Copies {
			key := ident.CopyRef{Disk: ref, ID: id}
			if c.Job != "" {
				o.Running[key] = true
			}
			// A failure under another declaration says nothing about this one, unless the disk or
			// the network caused it.
			if c.Failure != nil && (sameConfig || c.Failure.Fault != model.FaultSource) {
				o.Failures[key] = peerFailure(*c.Failure, a.State.Clock, at)
			}
		}
	}
}

// maxPeerRetry limits how far in the future the next attempt of another node can be. An honest node waits
// longer only after wrong bytes (rareBackoff in package job); that failure is Final.
const maxPeerRetry = time.Hour

// peerFailure translates a failure on another node to the wall clock of this node. When it was received, this clock showed at,
// and the wall clock of the other node showed the time in clock. A failure cannot have happened in the future, whatever that node says.
func peerFailure(f model.Failure, clock, at time.Time) model.Failure {
	if !clock.IsZero() {
		f = f.Translated(clock, at)
	}
	if f.Since.After(at) {
		f.Since = at
	}
	if latest := at.Add(maxPeerRetry); f.RetryAt.After(latest) {
		f.RetryAt = latest
	}
	return f
}

// declaredDisks returns the declared disks of a node from its state s. It moves the needs from the copies to the disks, and leaves
// out failures and jobs.
func declaredDisks(declared schema.Node, node string, s model.Node) map[ident.DiskRef]model.Disk {
	disks := map[ident.DiskRef]model.Disk{}
	for name, seen := range s.Disks {
		one, ok := declared.Disks[name]
		if !ok {
			continue
		}
		seen.Path = one.Path
		if seen.Problem != "" {
			seen = model.Disk{Path: seen.Path, UUID: seen.UUID, Problem: seen.Problem}
		} else {
			copies := make(model.Copies, len(seen.Copies))
			seen.Needs = map[ident.ID]model.Need{}
			for id, c := range seen.Copies {
				if c.Need != nil {
					seen.Needs[id] = *c.Need
				}
				c.Need, c.Failure, c.Job, c.InUseRecorded = nil, nil, "", c.UsedBy != ""
				copies[id] = c
			}
			seen.Copies = copies
		}
		disks[ident.DiskRef{Node: node, Disk: name}] = seen
	}
	return disks
}

// responsesFromPeers converts the states that nodes returned for a query, by node name.
func responsesFromPeers(nodes map[string]schema.Node, states map[string]model.Node) map[string]plan.Response {
	responses := map[string]plan.Response{}
	for name, s := range states {
		responses[name] = plan.Response{ConfigDigest: s.ConfigDigest, Disks: declaredDisks(nodes[name], name, s)}
	}
	return responses
}

// copiesFor returns the digest of the bytes that an action may read from peers, and a function that
// returns the peer copies with these bytes at the time of the call. An action that reads a copy of this
// node, or no copy, uses no peers.
func (s *peers) copiesFor(d plan.Desired, o plan.Observed, a plan.Action) (want ident.Digest, copies func() []peer.Source) {
	if a.LocalSource != (ident.CopyRef{}) || !a.Op.ReadsCopies() && a.Op != model.Verify {
		return ident.Digest{}, func() []peer.Source { return nil }
	}
	want = d.DigestOf(o, a)
	nodes := d.Config.Nodes
	return want, func() []peer.Source { return s.ledger.Readable(sources(s.system.Observations(), nodes, want), want) }
}

// sources returns the copies with the digest want that the responding nodes offer.
func sources(observations map[string]peer.Observation, nodes map[string]schema.Node, want ident.Digest) []peer.Source {
	var all []peer.Source
	for name, a := range observations {
		if !a.Polled || a.Problem != "" {
			continue
		}
		// The address may change while a job runs: a.URL is the current address, nodes has the
		// address at the start of the job.
		at := peer.Address{Node: name, URL: a.URL}
		for on, seen := range a.State.Disks {
			if _, declared := nodes[name].Disks[on]; !declared || seen.Problem != "" {
				continue
			}
			for id, c := range seen.Copies {
				if c.HasDigest(want) && !c.Leaving && !c.ManifestDigest.IsZero() {
					all = append(all, peer.Source{Address: at, Disk: on, ID: id, ManifestDigest: c.ManifestDigest, Size: c.Size})
				}
			}
		}
	}
	slices.SortFunc(all, func(a, b peer.Source) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Disk, b.Disk), a.ID.Compare(b.ID))
	})
	return all
}
