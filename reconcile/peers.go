package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// peers are the other nodes, each as it publishes its own state.
type peers struct {
	system Peers
	states map[string]peerState // by node
	claims *claims
	// otherConfig has since when nodes have had another config digest than this one, or none, by the
	// steady clock.
	otherConfig map[string]time.Time
}

func newPeers(system Peers, log *slog.Logger) peers {
	return peers{system: system, states: map[string]peerState{}, claims: newClaims(log), otherConfig: map[string]time.Time{}}
}

// peerState is the last published state of a node, converted for the planner.
type peerState struct {
	state       peer.State
	clockOffset time.Duration // this node's wall clock minus that node's
	node        schema.Node   // its declaration when its state was converted
	disks       map[ident.DiskRef]plan.Disk
}

// follow polls the other nodes that d declares, and no others, until ctx ends. It does not wait
// for responses.
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

// mergeInto adds the last observations of the other nodes to o. For a node that does not respond
// it adds its last state. now is the steady time of o.
func (s *peers) mergeInto(d plan.Desired, o *plan.Observed, now time.Time) {
	if observations := s.system.Observations(); observations != nil {
		s.mergeObservations(d, o, observations, now)
	}
}

// mergeObservations is mergeInto for the given observations, which are not nil.
func (s *peers) mergeObservations(d plan.Desired, o *plan.Observed, observations map[string]peer.Observation, now time.Time) {
	o.Peers = map[string]plan.Peer{}
	for name := range d.Config.Nodes {
		if name == d.Node {
			continue
		}
		a := observations[name]
		p := plan.Peer{Queried: a.Polled, Problem: a.Problem, ConfigDigest: a.State.Config, Outdated: a.Outdated, Omitted: a.State.Omitted}
		if p.Problem == "" && !p.Queried {
			p.Problem = "not queried yet"
		}
		if p.Problem != "" && !a.LastSeen.IsZero() {
			p.UnreachableFor = max(0, now.Sub(a.LastSeen))
		}
		p.OtherConfigFor = s.trackConfig(d, name, p, now)
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
	s.claims.apply(d, o, now)
	o.MarkDisputedDisks() // also a disk of this node, if another one has its uuid (I10)
}

// trackConfig returns plan.Peer.OtherConfigFor of a node. The time begins when the node responds with
// another digest, so that neither a pause of this process nor a restart of the node counts. It goes on
// until the node has the same digest, also while the node does not respond and when its digest changes:
// otherwise a node could delay others for ever. While this node has no digest it cannot compare, and
// the time begins again.
func (s *peers) trackConfig(d plan.Desired, name string, p plan.Peer, now time.Time) time.Duration {
	since, differs := s.otherConfig[name]
	switch {
	case d.Digest == "", p.ConfigDigest == d.Digest:
		delete(s.otherConfig, name)
		return 0
	case !differs && p.Responds():
		s.otherConfig[name] = now
		return 0
	case !differs:
		return 0
	}
	return now.Sub(since)
}

// disksOf returns the disks of a node from its last state, which was received at the wall time
// at. It converts each state once, because most rounds find no new one, and again when one of the
// clocks was set or other disks are declared.
func (s *peers) disksOf(d plan.Desired, name string, a peer.Observation, at time.Time) map[ident.DiskRef]plan.Disk {
	node := d.Config.Nodes[name]
	last, ok := s.states[name]
	offset := at.Sub(a.State.Clock)
	sameDisks := slices.Equal(slices.Sorted(maps.Keys(last.node.Disks)), slices.Sorted(maps.Keys(node.Disks)))
	if !ok || (offset-last.clockOffset).Abs() > maxSkew || !isSameState(last.state, a.State) || !sameDisks {
		disks := disksFromPeer(d.Config.Nodes, name, a.State)
		for ref, seen := range disks {
			if seen.Problem != "" { // what replicas need there is what its last listing had (U7)
				seen.Demands = last.disks[ref].Demands
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

// isSameState reports whether two observations have the same state from the same response.
func isSameState(a, b peer.State) bool {
	return len(a.Disks) == len(b.Disks) && (len(a.Disks) == 0 || &a.Disks[0] == &b.Disks[0])
}

// translate converts the times from which a plan computes a wait to this node's clock.
func (t peerState) translate(offset time.Duration) {
	for _, seen := range t.disks {
		for id, c := range seen.Copies {
			for _, at := range []*time.Time{&c.DamagedAt, &c.ReadBackAt, &c.SurplusSince, &c.LastUsed} {
				if !at.IsZero() {
					*at = at.Add(offset)
				}
			}
			seen.Copies[id] = c
		}
	}
}

// mergeJobs adds the jobs and failures of a node to o. at is the wall time when they were received.
func mergeJobs(o plan.Observed, d plan.Desired, a peer.Observation, at time.Time) {
	sameConfig := a.State.Config == d.Digest && d.Digest != ""
	for _, one := range a.State.Disks {
		ref := ident.DiskRef{Node: a.State.Node, Disk: one.Name}
		if _, declared := d.Disk(ref); !declared {
			continue
		}
		for _, c := range one.Copies {
			key := ident.CopyRef{Disk: ref, ID: c.ID}
			if c.Action != "" {
				o.Running[key] = true
			}
			// A failure under another declaration says nothing about this one, unless its cause is
			// the disk or the network.
			if c.Failure != nil && (sameConfig || c.Failure.Disk || c.Failure.Link) {
				o.Failures[key] = failureFromPeer(*c.Failure, at)
			}
		}
	}
}

// maxPeerRetry is how far in the future the next attempt of another node counts. An honest node waits
// longer only after wrong bytes (rareBackoff in package job); that failure is Final.
const maxPeerRetry = time.Hour

// failureFromPeer returns a failure with wall times of this node. at is when it was received.
func failureFromPeer(t peer.Failure, at time.Time) plan.Failure {
	after := func(seconds float64) time.Time { return at.Add(time.Duration(seconds * float64(time.Second))) }
	f := plan.Failure{
		Op: plan.Op(t.Action), Attempts: t.Attempts, Message: t.Message, Final: t.Final, Fault: plan.FaultOf(t.Disk, t.Link),
		// A failure cannot have happened in the future, whatever the peer sent.
		Since: after(-math.Abs(t.Since)), RetryAt: after(min(t.RetryIn, maxPeerRetry.Seconds())),
	}
	if t.Final && (t.RetryIn == 0 || t.RetryIn < -longestBackoff.Seconds()) {
		f.RetryAt = time.Time{} // there is no next attempt; earlier versions published one in the past
	}
	return f
}

// longestBackoff is longer than any delay between two attempts.
const longestBackoff = 48 * time.Hour

// disksFromPeer returns the declared disks of a node from its state.
func disksFromPeer(nodes map[string]schema.Node, node string, s peer.State) map[ident.DiskRef]plan.Disk {
	disks := map[ident.DiskRef]plan.Disk{}
	for _, one := range s.Disks {
		declared, ok := nodes[node].Disks[one.Name]
		if !ok {
			continue
		}
		seen := plan.Disk{Path: declared.Path, UUID: one.UUID, Problem: one.Problem}
		if seen.Problem == "" {
			seen.Space, seen.ReadOnly, seen.UsageUnknown = disk.Space{Total: one.Total, Free: one.Free}, one.ReadOnly, one.UsageUnknown
			seen.Copies, seen.Demands = make(map[ident.ID]plan.Copy, len(one.Copies)), map[ident.ID]plan.Demand{}
			for _, c := range one.Copies {
				seen.Copies[c.ID] = copyFromPeer(c)
				if c.Demand != "" {
					seen.Demands[c.ID] = plan.Demand{By: c.Demand, Since: c.DemandSince}
				}
			}
		}
		disks[ident.DiskRef{Node: node, Disk: one.Name}] = seen
	}
	return disks
}

// responsesFromPeers converts the states that nodes returned for a query, by node name.
func responsesFromPeers(nodes map[string]schema.Node, states map[string]peer.State) map[string]plan.Response {
	responses := map[string]plan.Response{}
	for name, s := range states {
		responses[name] = plan.Response{ConfigDigest: s.Config, Disks: disksFromPeer(nodes, name, s)}
	}
	return responses
}

// copyFromPeer is the inverse of copyToPeer, as far as peers receive the fields.
func copyFromPeer(c peer.Copy) plan.Copy {
	if c.FromPeers {
		c.PartSourceID = disk.PartFromPeers
	}
	c.InUseRecorded = c.UsedBy != ""
	return plan.Copy{Copy: c.Copy, UsedBy: c.UsedBy, Leaving: c.Leaving, Published: plan.Reason{Code: plan.Code(c.ReasonCode), Text: c.Reason}, Rejects: c.Rejection, RejectsForNow: c.RejectionTemporary}
}

// copiesFor returns the digest of the bytes that an action may read from peers, and a function that
// returns the peer copies with these bytes at the time of the call. An action that reads a copy of this
// node, or none, uses no peers.
func (s *peers) copiesFor(d plan.Desired, o plan.Observed, a plan.Action) (want ident.Digest, copies func() []peer.Source) {
	if a.LocalSource != (ident.CopyRef{}) || !a.Op.ReadsCopies() && a.Op != plan.Verify {
		return ident.Digest{}, func() []peer.Source { return nil }
	}
	want = d.DigestOf(o, a)
	nodes := d.Config.Nodes
	return want, func() []peer.Source { return s.claims.readable(sources(s.system.Observations(), nodes, want), want) }
}

// sources returns the copies with the digest want that the responding nodes offer.
func sources(observations map[string]peer.Observation, nodes map[string]schema.Node, want ident.Digest) []peer.Source {
	var all []peer.Source
	for _, name := range slices.Sorted(maps.Keys(observations)) {
		a := observations[name]
		if !a.Polled || a.Problem != "" {
			continue
		}
		// The address may change while a job runs: a.URL is the current one, nodes has the address
		// at the start of the job.
		at := peer.Address{Node: name, URL: a.URL}
		for _, one := range a.State.Disks {
			if _, declared := nodes[name].Disks[one.Name]; !declared || one.Problem != "" {
				continue
			}
			for i := range one.Copies {
				if c := &one.Copies[i]; c.HasDigest(want) && !c.Leaving && !c.ManifestDigest.IsZero() {
					all = append(all, peer.Source{Address: at, Disk: one.Name, ID: c.ID, ManifestDigest: c.ManifestDigest, Size: c.Size})
				}
			}
		}
	}
	return all
}
