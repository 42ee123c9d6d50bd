package reconcile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// hear adds to o what the other nodes told last. Of those that are silent it is what
// they told before.
func (s *others) hear(d Desired, o *Observed) {
	if s.watch != nil {
		s.hearFrom(d, o, s.watch.Observations(), time.Now())
	}
}

// hearFrom is hear of these answers, at the time now of the clock that they go by.
func (s *others) hearFrom(d Desired, o *Observed, answers map[string]peer.Observation, now time.Time) {
	o.Peers = map[string]Peer{}
	for name := range s.addresses(d) {
		a := answers[name]
		p := Peer{Asked: a.Polled, Problem: a.Problem, Config: a.State.Config}
		if p.Problem == "" && !p.Asked {
			p.Problem = "not asked yet"
		}
		if p.Problem != "" && !a.LastSeen.IsZero() {
			p.Silent = max(0, now.Sub(a.LastSeen))
		}
		switch {
		case a.LastSuccess.IsZero():
		case p.Problem == "":
			p.Last = o.Now.Add(a.LastSeen.Sub(now))
		default:
			p.Last = o.Now.Add(a.LastSuccess.Sub(now))
		}
		o.Peers[name] = p
		at := o.Now.Add(a.Received.Sub(now))
		maps.Copy(o.Disks, s.disksOf(d, name, a, at))
		hearOf(*o, d, a, at)
	}
	o.refuseClones()
}

// disksOf returns the disks of a node as it told last, which was at the time at by this
// node's clock. They are made once of each answer, and when this clock was set.
func (s *others) disksOf(d Desired, name string, a peer.Observation, at time.Time) map[schema.DiskRef]Disk {
	node := d.Config.Nodes[name]
	last, ok := s.told[name]
	ahead := at.Sub(a.State.Clock)
	if !ok || (ahead-last.ahead).Abs() > stepped || !last.at.Equal(a.Received) || !slices.Equal(slices.Sorted(maps.Keys(last.node.Disks)), slices.Sorted(maps.Keys(node.Disks))) {
		last = toldAt{at: a.Received, ahead: ahead, node: node, disks: told(d.Config.Nodes, name, a.State)}
		if !a.State.Clock.IsZero() {
			last.translate(ahead)
		}
		s.told[name] = last
	}
	return last.disks
}

// translate puts times that are waited for on this node's clock.
func (t toldAt) translate(ahead time.Duration) {
	for _, seen := range t.disks {
		for id, c := range seen.Copies {
			if !c.DamagedAt.IsZero() {
				c.DamagedAt = c.DamagedAt.Add(ahead)
				seen.Copies[id] = c
			}
		}
	}
}

// hearOf adds what a node does and what failed there. at is when it said so.
func hearOf(o Observed, d Desired, a peer.Observation, at time.Time) {
	alike := a.State.Config == d.Digest && d.Digest != ""
	for _, one := range a.State.Disks {
		ref := schema.DiskRef{Node: a.State.Node, Disk: one.Name}
		if _, declared := d.disk(ref); !declared {
			continue
		}
		for _, c := range one.Copies {
			key := Key{ref, c.ID}
			if c.Action != "" {
				o.Running[key] = true
			}
			if c.Failure != nil && (alike || c.Failure.Disk || c.Failure.Link) { // these say nothing of a declaration
				o.Tries[key] = toldTry(*c.Failure, at)
			}
		}
	}
}

func toldTry(t peer.Failure, at time.Time) Try {
	after := func(seconds float64) time.Time { return at.Add(time.Duration(seconds * float64(time.Second))) }
	return Try{
		Kind: Kind(t.Action), Attempts: t.Attempts, Message: t.Message, Final: t.Final, Disk: t.Disk, Link: t.Link,
		Since: after(-math.Abs(t.Since)), Until: after(t.RetryIn),
	}
}

// told returns those disks of a node that are declared, as it tells of them.
func told(nodes map[string]schema.Node, node string, s peer.State) map[schema.DiskRef]Disk {
	disks := map[schema.DiskRef]Disk{}
	for _, one := range s.Disks {
		declared, ok := nodes[node].Disks[one.Name]
		if !ok {
			continue
		}
		seen := Disk{Path: declared.Path, UUID: one.UUID, Problem: one.Problem}
		if seen.Problem == "" {
			seen.Space, seen.Unclear = disk.Space{Total: one.Total, Free: one.Free}, one.UsageUnknown
			seen.Copies = make(map[disk.ID]Copy, len(one.Copies))
			for _, c := range one.Copies {
				seen.Copies[c.ID] = toldCopy(c)
			}
		}
		disks[schema.DiskRef{Node: node, Disk: one.Name}] = seen
	}
	return disks
}

// responsesOf are the answers of nodes as a plan takes them.
func responsesOf(nodes map[string]schema.Node, states map[string]peer.State) map[string]Answer {
	answers := map[string]Answer{}
	for name, s := range states {
		answers[name] = Answer{Config: s.Config, Disks: told(nodes, name, s)}
	}
	return answers
}

func toldCopy(c peer.Copy) Copy {
	if c.FromPeers {
		c.PartSourceID = peer.PartFromPeers
	}
	c.InUseRecorded = c.UsedBy != ""
	return Copy{Copy: c.Copy, Using: c.UsedBy, Leaving: c.Leaving, Refuses: c.Rejection, Later: c.RejectionTemporary}
}

// hasTwins reports whether any two disks have the same identity.
func (o Observed) hasTwins() bool {
	seen := make(map[string]bool, len(o.Disks))
	for _, d := range o.Disks {
		if d.UUID != "" && seen[d.UUID] {
			return true
		}
		seen[d.UUID] = true
	}
	return false
}

// refuseClones finds disks with the same identity on two nodes that both answer, this
// one included: a cloned machine. Nobody can tell which of them is meant.
func (o Observed) refuseClones() {
	if !o.hasTwins() {
		return
	}
	first := map[string]schema.DiskRef{}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), compareRefs) {
		uuid := o.Disks[ref].UUID
		if p, other := o.Peers[ref.Node]; uuid == "" || other && !p.answers() {
			continue
		}
		twin, taken := first[uuid]
		if !taken {
			first[uuid] = ref
			continue
		}
		if twin.Node == ref.Node {
			continue // that node refuses them by itself
		}
		problem := fmt.Sprintf("%s and %s have the same diskUUID %s: one machine is a clone of the other; give one disk a new identity: remove its longhorn-disk.cfg and run disk init", twin, ref, uuid)
		for _, clone := range []schema.DiskRef{twin, ref} {
			seen := o.Disks[clone]
			o.Disks[clone] = Disk{Path: seen.Path, UUID: seen.UUID, Problem: problem}
		}
	}
}
