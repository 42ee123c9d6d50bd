package reconcile

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// mergeInto adds to o what the other nodes told last. Of those that are silent it is what
// they told before.
func (s *peers) mergeInto(d plan.Desired, o *plan.Observed) {
	if s.watch != nil {
		s.mergeResponses(d, o, s.watch.Observations(), time.Now())
	}
}

// mergeResponses is hear of these answers, at the time now of the clock that they go by.
func (s *peers) mergeResponses(d plan.Desired, o *plan.Observed, answers map[string]peer.Observation, now time.Time) {
	o.Peers = map[string]plan.Peer{}
	for name := range s.addressesOf(d) {
		a := answers[name]
		p := plan.Peer{Queried: a.Polled, Problem: a.Problem, ConfigDigest: a.State.Config}
		if p.Problem == "" && !p.Queried {
			p.Problem = "not asked yet"
		}
		if p.Problem != "" && !a.LastSeen.IsZero() {
			p.UnreachableFor = max(0, now.Sub(a.LastSeen))
		}
		switch {
		case a.LastSuccess.IsZero():
		case p.Problem == "":
			p.LastResponse = o.Now.Add(a.LastSeen.Sub(now))
		default:
			p.LastResponse = o.Now.Add(a.LastSuccess.Sub(now))
		}
		o.Peers[name] = p
		at := o.Now.Add(a.Received.Sub(now))
		maps.Copy(o.Disks, s.disksOf(d, name, a, at))
		mergeJobs(*o, d, a, at)
	}
	o.RejectDuplicateDisks()
}

// disksOf returns the disks of a node as it told last, which was at the time at by this
// node's clock. They are made once of each answer, and when this clock was set.
func (s *peers) disksOf(d plan.Desired, name string, a peer.Observation, at time.Time) map[schema.DiskRef]plan.Disk {
	node := d.Config.Nodes[name]
	last, ok := s.states[name]
	ahead := at.Sub(a.State.Clock)
	if !ok || (ahead-last.clockOffset).Abs() > maxSkew || !last.at.Equal(a.Received) || !slices.Equal(slices.Sorted(maps.Keys(last.node.Disks)), slices.Sorted(maps.Keys(node.Disks))) {
		last = peerState{at: a.Received, clockOffset: ahead, node: node, disks: disksFromPeer(d.Config.Nodes, name, a.State)}
		if !a.State.Clock.IsZero() {
			last.translate(ahead)
		}
		s.states[name] = last
	}
	return last.disks
}

// translate puts times that are waited for on this node's clock.
func (t peerState) translate(ahead time.Duration) {
	for _, seen := range t.disks {
		for id, c := range seen.Copies {
			if !c.DamagedAt.IsZero() {
				c.DamagedAt = c.DamagedAt.Add(ahead)
				seen.Copies[id] = c
			}
		}
	}
}

// mergeJobs adds what a node does and what failed there. at is when it said so.
func mergeJobs(o plan.Observed, d plan.Desired, a peer.Observation, at time.Time) {
	alike := a.State.Config == d.Digest && d.Digest != ""
	for _, one := range a.State.Disks {
		ref := schema.DiskRef{Node: a.State.Node, Disk: one.Name}
		if _, declared := d.Disk(ref); !declared {
			continue
		}
		for _, c := range one.Copies {
			key := plan.CopyRef{Disk: ref, ID: c.ID}
			if c.Action != "" {
				o.Running[key] = true
			}
			if c.Failure != nil && (alike || c.Failure.Disk || c.Failure.Link) { // these say nothing of a declaration
				o.Failures[key] = failureFromPeer(*c.Failure, at)
			}
		}
	}
}

func failureFromPeer(t peer.Failure, at time.Time) plan.Failure {
	after := func(seconds float64) time.Time { return at.Add(time.Duration(seconds * float64(time.Second))) }
	return plan.Failure{
		Op: plan.Op(t.Action), Attempts: t.Attempts, Message: t.Message, Final: t.Final, Disk: t.Disk, Link: t.Link,
		Since: after(-math.Abs(t.Since)), RetryAt: after(t.RetryIn),
	}
}

// disksFromPeer returns those disks of a node that are declared, as it tells of them.
func disksFromPeer(nodes map[string]schema.Node, node string, s peer.State) map[schema.DiskRef]plan.Disk {
	disks := map[schema.DiskRef]plan.Disk{}
	for _, one := range s.Disks {
		declared, ok := nodes[node].Disks[one.Name]
		if !ok {
			continue
		}
		seen := plan.Disk{Path: declared.Path, UUID: one.UUID, Problem: one.Problem}
		if seen.Problem == "" {
			seen.Space, seen.UsageUnknown = disk.Space{Total: one.Total, Free: one.Free}, one.UsageUnknown
			seen.Copies = make(map[disk.ID]plan.Copy, len(one.Copies))
			for _, c := range one.Copies {
				seen.Copies[c.ID] = copyFromPeer(c)
			}
		}
		disks[schema.DiskRef{Node: node, Disk: one.Name}] = seen
	}
	return disks
}

// responsesFromPeers are the answers of nodes as a plan takes them.
func responsesFromPeers(nodes map[string]schema.Node, states map[string]peer.State) map[string]plan.Response {
	answers := map[string]plan.Response{}
	for name, s := range states {
		answers[name] = plan.Response{ConfigDigest: s.Config, Disks: disksFromPeer(nodes, name, s)}
	}
	return answers
}

func copyFromPeer(c peer.Copy) plan.Copy {
	if c.FromPeers {
		c.PartSourceID = disk.PartFromPeers
	}
	c.InUseRecorded = c.UsedBy != ""
	return plan.Copy{Copy: c.Copy, UsedBy: c.UsedBy, Leaving: c.Leaving, Rejects: c.Rejection, RejectsForNow: c.RejectionTemporary}
}
