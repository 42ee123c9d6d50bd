package reconcile

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A question that a node has broken off just now is no answer.
func TestFailedQueryIsNoResponse(t *testing.T) {
	d := plan.Desired{Config: plantest.NewConfig(2, 1), Node: "node1"}
	now := time.Now()
	asked, brokenOff := now.Add(-time.Minute), now.Add(-time.Second)
	for problem, want := range map[string]time.Duration{"": time.Second, "it does not answer in time": time.Minute} {
		o := plan.Observed{Now: now.Add(time.Hour), Disks: map[schema.DiskRef]plan.Disk{}}
		of := newPeers(nil)
		of.mergeObservations(d, &o, map[string]peer.Observation{"node2": {Polled: true, Problem: problem, LastSuccess: asked, LastSeen: brokenOff}}, now)
		if ago := o.Now.Sub(o.Peers["node2"].LastResponse); ago != want {
			t.Errorf("with the problem %q it answered %v ago, want %v", problem, ago, want)
		}
	}
}

// This node's clock is set a year back after another one told of a copy that failed a minute
// ago, and has nothing new to tell.
func TestPeerTimesFollowAClockStep(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	d, _ := plantest.AsNode(refs[0].Node, c, plantest.EmptyDisks(c))
	failed := plantest.FailedCopy(image, plantest.Digest(disk.SHA512, "a"))
	answers := map[string]peer.Observation{refs[1].Node: {Polled: true, Received: plantest.Now, State: peer.State{
		Node: refs[1].Node, Clock: plantest.Now, Disks: []peer.Disk{{Name: refs[1].Disk, UUID: "u", Copies: []peer.Copy{copyToPeer(failed)}}},
	}}}
	s := newPeers(nil)
	for _, now := range []time.Time{plantest.Now, plantest.Now.AddDate(-1, 0, 0)} {
		o := plan.Observed{Now: now, Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}}
		s.mergeObservations(d, &o, answers, plantest.Now)
		if ago := now.Sub(o.Disks[refs[1]].Copies[image.ID].DamagedAt); ago != time.Minute {
			t.Errorf("at %v it failed %v ago", now, ago)
		}
	}
}

// While a file about another image is broken (on all nodes, so that no node has a
// digest), the take-over waits for ever: only the one that failed knows it.
func TestFailoverWithAnInvalidConfiguration(t *testing.T) {
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
	plantest.ExpectAction(t, mine.Plan(o), waits)
}

// The failed copy that bears the digest lies on a node whose clock is a minute ahead.
func TestPinnedDigestWithASkewedPeerClock(t *testing.T) {
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

// A node suspects its own copy: it neither reads nor counts it. Another one counts on it.
func TestPeersDoNotCountASuspectedCopy(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	o := plantest.EmptyDisks(c)
	for _, ref := range refs {
		one := plantest.ReadyCopy(image, image.Checksum)
		one.SurplusSince = plantest.Now.Add(-99 * time.Hour)
		o.Disks[ref].Copies[image.ID] = one
	}
	// refs[0].Node made a copy of it on another disk, and other bytes came out.
	d0, o0 := plantest.AsNode(refs[0].Node, c, o)
	o0.Failures = map[plan.CopyRef]plan.Failure{{Disk: schema.DiskRef{Node: refs[0].Node, Disk: "disk9"}, ID: image.ID}: {Op: plan.Sync, Suspects: []plan.CopyRef{{Disk: refs[0], ID: image.ID}}}}
	told := (&Reconciler{}).state(d0, o0)
	o1 := o
	o1.Disks[refs[0]] = disksFromPeer(c.Nodes, told.Node, told)[refs[0]]
	d1, o1 := plantest.AsNode(refs[1].Node, c, o1)
	for _, a := range d1.Plan(o1).Actions {
		if a.Op.Deletes() {
			t.Errorf("%s of %s, counted on a copy that its own node does not believe in", a.Op, a.CopyRef())
		}
	}
}

// A part that came from other nodes is nothing that a first copy was begun with, on whatever
// node it lies.
func TestPartSourceSurvivesPeerState(t *testing.T) {
	for from, pulled := range map[string]bool{disk.PartFromPeers + " sha256:0a": true, disk.PartFromUpload: false, "": false} {
		c := plan.Copy{Copy: disk.Copy{ID: disk.ID{Name: "parrot", UUID: "0000000a"}, PartBytes: 1, PartSourceID: from}}
		if there := copyFromPeer(copyToPeer(c)); c.FromPeers() != pulled || there.FromPeers() != pulled {
			t.Errorf("part of %q: pulled is %v here and %v elsewhere", from, c.FromPeers(), there.FromPeers())
		}
	}
}

// The digest of a copy that failed on another node is recalled, as it comes over the wire.
func TestPinnedDigestFromPeerState(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Checksum = disk.Digest{}
	c.Images["parrot"] = image
	now := time.Now()
	o := plantest.EmptyDisks(c)
	o.Now = now
	failed := plantest.ReadyCopy(image, plantest.Digest(disk.SHA512, "b"))
	failed.State, failed.DamagedAt = disk.Failed, now.Add(-10*time.Second)
	o.Disks[refs[0]].Copies[image.ID] = failed
	d0, o0 := plantest.AsNode(refs[0].Node, c, o)
	board := peer.NewStateCache()
	board.Publish((&Reconciler{}).state(d0, o0))
	s := httptest.NewServer(peer.NewServer(board, nil).Handler())
	defer s.Close()
	state, _, err := peer.NewClient(nil, nil).State(t.Context(), peer.Address{Node: refs[0].Node, URL: s.URL}, "", 0)
	must(t, err)
	t.Log("clock:", state.Clock)
	d1, o1 := plantest.AsNode(refs[1].Node, c, plantest.EmptyDisks(c))
	o1.Now = now
	others := newPeers(nil)
	for ref, seen := range others.disksOf(d1, refs[0].Node, peer.Observation{State: state, Polled: true, Received: now}, now) {
		o1.Disks[ref] = seen
	}
	v := d1.NewIndex(o1).NewImagePlanner(image)
	if v.PinnedDigest().Digest.IsZero() {
		t.Error("what node1 had 10 s ago is forgotten:", o1.Disks[refs[0]].Copies[image.ID].DamagedAt)
	}
}

// A transfer may take days, in which a node that has the bytes gets another address.
func TestSyncSourcesFollowPeerAddresses(t *testing.T) {
	h, chunks := disk.SHA512.New(), disk.SHA256.New()
	want := disk.SHA512.Digest(h)
	board := peer.NewStateCache()
	board.Publish(peer.State{Node: "node2", Disks: []peer.Disk{{Name: "disk1", Copies: []peer.Copy{{Copy: disk.Copy{
		ID: disk.ID{Name: "parrot", UUID: "0000000a"}, State: disk.Ready, Size: 512, SHA512: want, ManifestDigest: disk.SHA256.Digest(chunks),
	}}}}}})
	client := peer.NewClient(nil, nil)
	local := &localPeers{}
	local.connect(client)
	defer local.Close()
	s := newPeers(local)
	var sources func() []peer.Source
	for i := range 2 {
		server := httptest.NewServer(peer.NewServer(board, nil).Handler())
		defer server.Close()
		d := plan.Desired{Node: "node1", Config: schema.Config{Nodes: map[string]schema.Node{
			"node2": {Address: server.URL, Disks: map[string]schema.Disk{"disk1": {}}},
		}}}
		local.Follow(t.Context(), addressesOf(d))
		for local.waiting() {
			<-local.changed()
		}
		if i == 0 {
			_, _, sources = s.copiesFor(d, plan.Observed{}, plan.Action{Op: plan.Sync, Image: "parrot", SourceDigest: want})
		}
		if now := sources(); len(now) != 1 || now[0].URL != server.URL {
			t.Errorf("node2 is at %s: the sources are %v", server.URL, now)
		}
	}
}
