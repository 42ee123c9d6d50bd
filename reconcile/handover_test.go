package reconcile

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// While a file about another image is broken (on all nodes, so that no node has a
// digest), the take-over waits for ever: only the one that failed knows it.
func TestTakeoverWhileSomethingElseIsBroken(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	first, second := refs[0], refs[1]
	state := peer.State{Node: first.Node, Config: "", Disks: []peer.Disk{{Name: first.Disk, UUID: "u", Free: 1 << 40, Copies: []peer.Copy{{
		Copy:    disk.Copy{ID: image.ID, State: disk.Pending},
		Failure: &peer.Failure{Action: "download", Message: "no route", Attempts: 4, Link: true, Since: -600, RetryIn: 100},
	}}}}}
	o := plantest.EmptyDisks(c)
	o.Peers = map[string]plan.Peer{first.Node: {Queried: true}}
	other, _ := plantest.AsNode(second.Node, c, o)
	other.Digest, other.Allowed = "", schema.NoDeletions
	mergeJobs(o, other, peer.Observation{State: state, Polled: true}, o.Now)
	waits := other.Plan(o)

	o = plantest.EmptyDisks(c)
	o.Peers = map[string]plan.Peer{second.Node: {Queried: true}}
	mine, _ := plantest.AsNode(first.Node, c, o)
	mine.Digest, mine.Allowed = "", schema.NoDeletions
	o.Failures[plan.CopyRef{Disk: first, ID: image.ID}] = failureFromPeer(*state.Disks[0].Copies[0].Failure, o.Now)
	plantest.CheckActs(t, mine.Plan(o), waits)
}

// The failed copy that bears the digest lies on a node whose clock is a minute ahead.
func TestRecallBySkewedClock(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Checksum = disk.Digest{}
	c.Images["parrot"] = image
	for _, skew := range []time.Duration{0, time.Minute, -10 * time.Minute} {
		o := plantest.EmptyDisks(c)
		o.Disks[refs[0]].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Failed, Owned: true, SHA512: plantest.Digest(disk.SHA512, "b"), DamagedAt: plantest.Now.Add(-10 * time.Second).Add(skew)}, Rejects: "the copy there failed and is in use"}
		peerState{disks: o.Disks}.translate(-skew)
		d, o := plantest.AsNode(refs[1].Node, c, o)
		for _, a := range d.Plan(o).Actions {
			if a.Op == plan.Download && a.Pinned.Digest.IsZero() {
				t.Errorf("skew %v: other bytes will do 10 s after the copy failed", skew)
			}
		}
	}
}
