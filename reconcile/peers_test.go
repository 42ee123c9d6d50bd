package reconcile

import (
	"log/slog"
	"maps"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/evidence"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/serve"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// newLedger returns a ledger without evidence.
func newLedger() *evidence.Ledger {
	return evidence.NewLedger(slog.New(slog.DiscardHandler), func() time.Time { return time.Time{} })
}

// A query that failed after a part of the response is no response.
func TestFailedQueryIsNoResponse(t *testing.T) {
	d := plan.Desired{Config: plantest.NewConfig(2, 1), Node: "node1"}
	now := time.Now()
	success, dropped := now.Add(-time.Minute), now.Add(-time.Second)
	for problem, want := range map[string]time.Duration{"": time.Second, "it does not answer in time": time.Minute} {
		o := plan.Observed{Now: now.Add(time.Hour), Disks: map[ident.DiskRef]model.Disk{}}
		s := newPeers(nil, newLedger())
		s.mergeInto(d, &o, map[string]peer.Observation{"node2": {Polled: true, Problem: problem, LastSuccess: success, LastSeen: dropped}}, now)
		if ago := o.Now.Sub(o.Peers["node2"].LastResponse); ago != want {
			t.Errorf("with the problem %q its last response was %v ago, want %v", problem, ago, want)
		}
	}
}

// A peer reported a copy that failed a minute before. The local clock is set back by a year, and
// the peer has nothing new to report: the copy still failed a minute ago.
func TestPeerTimesFollowAClockStep(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	d, _ := plantest.AsNode(refs[0].Node, c, plantest.EmptyDisks(c))
	failed := plantest.FailedCopy(image, plantest.Digest(ident.SHA512, "a"))
	observations := map[string]peer.Observation{refs[1].Node: {Polled: true, Received: plantest.Now, State: model.Node{
		Version: model.Version, Node: refs[1].Node, Clock: plantest.Now, Disks: map[string]model.Disk{refs[1].Disk: {UUID: "u", Copies: model.NewCopies(failed.ForPeers())}},
	}}}
	s := newPeers(nil, newLedger())
	for _, now := range []time.Time{plantest.Now, plantest.Now.AddDate(-1, 0, 0)} {
		o := plan.Observed{Now: now, Disks: map[ident.DiskRef]model.Disk{}, Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}}
		s.mergeInto(d, &o, observations, plantest.Now)
		if ago := now.Sub(o.Disks[refs[1]].Copies[image.ID].DamagedAt); ago != time.Minute {
			t.Errorf("at %v it failed %v ago", now, ago)
		}
	}
}

// The declaration of another image is invalid on all nodes, so that no node publishes a config
// digest. The best ranked node failed to download: one of the two nodes must still try.
func TestFailoverWithAnInvalidConfiguration(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	first, second := refs[0], refs[1]
	o := plantest.EmptyDisks(c)
	failure := model.Failure{Op: model.Download, Message: "no route", Attempts: 4, Fault: model.FaultNetwork, Since: o.Now.Add(-10 * time.Minute), RetryAt: o.Now.Add(100 * time.Second)}
	state := model.Node{Version: model.Version, Node: first.Node, ConfigDigest: "", Disks: map[string]model.Disk{first.Disk: {UUID: "u", Copies: model.NewCopies(model.Copy{ID: image.ID, State: model.Pending, Failure: &failure}), Space: model.Space{Free: 1 << 40}}}}
	o.Peers = map[string]model.Peer{first.Node: {Queried: true}}
	other, _ := plantest.AsNode(second.Node, c, o)
	other.Digest, other.Allowed = "", schema.NoDeletions
	mergeJobs(o, other, peer.Observation{State: state, Polled: true}, o.Now)
	otherPlan := plan.NewRound(other, o).Plan()

	o = plantest.EmptyDisks(c)
	o.Peers = map[string]model.Peer{second.Node: {Queried: true}}
	own, _ := plantest.AsNode(first.Node, c, o)
	own.Digest, own.Allowed = "", schema.NoDeletions
	o.Failures[ident.CopyRef{Disk: first, ID: image.ID}] = failure
	plantest.ExpectAction(t, plan.NewRound(own, o).Plan(), otherPlan)
}

// A copy that failed 10 s ago has established the digest of its image. The clock of its node is
// wrong: another node must still pin that digest.
func TestPinnedDigestWithASkewedPeerClock(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Checksum = ident.Digest{}
	c.Images["parrot"] = image
	for _, skew := range []time.Duration{0, time.Minute, -10 * time.Minute} {
		o := plantest.EmptyDisks(c)
		o.Disks[refs[0]].Copies[image.ID] = model.Copy{ID: image.ID, State: model.Failed, Owned: true, SHA512: plantest.Digest(ident.SHA512, "b"), DamagedAt: plantest.Now.Add(-10 * time.Second).Add(skew), Rejection: "the copy there failed and is in use"}
		peerState{disks: o.Disks}.translate(-skew)
		d, o := plantest.AsNode(refs[1].Node, c, o)
		for _, a := range plan.NewRound(d, o).Plan().Actions {
			if a.Op == model.Download && a.Pinned.Digest.IsZero() {
				t.Errorf("skew %v: a download accepts other bytes 10 s after the copy failed", skew)
			}
		}
	}
}

// A node suspects its own copy, because a sync from it produced other bytes. Another node must not
// count that copy when it decides about a deletion.
func TestPeersDoNotCountASuspectedCopy(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	o := plantest.EmptyDisks(c)
	for _, ref := range refs {
		ready := plantest.ReadyCopy(image, image.Checksum)
		ready.SurplusSince = plantest.Now.Add(-99 * time.Hour)
		o.Disks[ref].Copies[image.ID] = ready
	}
	d0, o0 := plantest.AsNode(refs[0].Node, c, o)
	o0.Failures = map[ident.CopyRef]model.Failure{{Disk: ident.DiskRef{Node: refs[0].Node, Disk: "disk9"}, ID: image.ID}: {Op: model.Sync, Suspects: []ident.CopyRef{{Disk: refs[0], ID: image.ID}}}}
	published := serve.State(plan.NewRound(d0, o0), plan.Plan{}, nil)
	o1 := o
	o1.Disks[refs[0]] = declaredDisks(c.Nodes[published.Node], published.Node, published)[refs[0]]
	d1, o1 := plantest.AsNode(refs[1].Node, c, o1)
	for _, a := range plan.NewRound(d1, o1).Plan().Actions {
		if a.Op.Deletes() {
			t.Errorf("%s of %s counts a copy that its node suspects", a.Op, a.CopyRef())
		}
	}
}

// Another node receives why a copy waits, with the code, also if there is no file yet. A running copy and an
// action that starts have no such reason.
func TestReasonsOfCopiesArePublished(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	d, o := plantest.AsNode(refs[0].Node, c, plantest.EmptyDisks(c))
	key := ident.CopyRef{Disk: refs[0], ID: image.ID}
	reason := model.Reason{Code: plan.CodeReplenishOff, Text: "the limit is 0"}
	for op, want := range map[model.Op]model.Reason{model.Blocked: reason, model.Wait: reason, model.Download: {}} {
		p := plan.Plan{Actions: []plan.Action{plan.NewAction(op, key, reason, 0)}}
		got := declaredDisks(c.Nodes[refs[0].Node], refs[0].Node, serve.State(plan.NewRound(d, o), p, nil))[refs[0]].Copies[image.ID]
		if got.Reason != want {
			t.Errorf("%s: %+v, want %+v", op, got.Reason, want)
		}
	}
}

// A failure that is final for now and one that is final for ever keep their meaning on the way to another node, whose clock
// differs.
func TestFinalFailuresOfPeers(t *testing.T) {
	now, at := plantest.Now, plantest.Now.Add(time.Hour)
	for _, f := range []model.Failure{{Op: model.Download, Attempts: 1, Since: now, Final: true, RetryAt: at}, {Op: model.Download, Attempts: 1, Since: now, Final: true}} {
		published := *model.Copy{Failure: &f}.ForPeers().Failure
		if got := peerFailure(published, now, now.Add(time.Minute)); got.RetryAt.IsZero() != f.RetryAt.IsZero() || got.RetryAt.Sub(f.RetryAt) > time.Minute || !got.Final {
			t.Errorf("final=%v, the next attempt at %v, want %v", got.Final, got.RetryAt, f.RetryAt)
		}
	}
}

// The published state of a partial file must show whether its bytes came from peers, because such
// a file is no started first copy.
func TestPartSourceSurvivesPeerState(t *testing.T) {
	for kind, want := range map[model.PartKind]model.PartKind{model.PartFromPeers: model.PartFromPeers, model.PartFromUpload: "", model.PartFromSource: ""} {
		c := model.Copy{ID: ident.ID{Name: "parrot", UUID: "0000000a"}, PartBytes: 1, PartKind: kind}
		if received := c.ForPeers(); received.PartKind != want {
			t.Errorf("a part of the kind %q is, as a peer reports it, of the kind %q", kind, received.PartKind)
		}
	}
}

// A copy of an image without a checksum failed 10 s ago on another node, where a volume uses it.
// From the state that the other node publishes, this node has to pin the digest of that copy.
func TestPinnedDigestFromPeerState(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Checksum = ident.Digest{}
	c.Images["parrot"] = image
	now := time.Now()
	o := plantest.EmptyDisks(c)
	o.Now = now
	failed := plantest.ReadyCopy(image, plantest.Digest(ident.SHA512, "b"))
	failed.State, failed.DamagedAt, failed.UsedBy = model.Failed, now.Add(-10*time.Second), "used by replica vol-1"
	o.Disks[refs[0]].Copies[image.ID] = failed
	d0, o0 := plantest.AsNode(refs[0].Node, c, o)
	cache := peer.NewStateCache()
	cache.Publish(serve.State(plan.NewRound(d0, o0), plan.Plan{}, nil))
	server := httptest.NewServer(peer.NewServer(cache, nil).Handler())
	defer server.Close()
	state, _, err := peer.NewClient(nil, nil).State(t.Context(), peer.Address{Node: refs[0].Node, URL: server.URL}, "", 0)
	must(t, err)
	d1, o1 := plantest.AsNode(refs[1].Node, c, plantest.EmptyDisks(c))
	o1.Now = now
	s := newPeers(nil, newLedger())
	maps.Copy(o1.Disks, s.disksOf(d1, refs[0].Node, peer.Observation{State: state, Polled: true, Received: now}, now))
	pinned := false
	for _, a := range plan.NewRound(d1, o1).Plan().Actions {
		pinned = pinned || a.Op == model.Download && a.Pinned.Digest == failed.SHA512
	}
	if !pinned {
		t.Errorf("no download has the pinned digest; the copy failed at %s, the plan is %+v", o1.Disks[refs[0]].Copies[image.ID].DamagedAt, plan.NewRound(d1, o1).Plan().Actions)
	}
}

// A running sync must use the new address of the node from which it reads, because a transfer may
// take days.
func TestSyncSourcesFollowPeerAddresses(t *testing.T) {
	want := plantest.Digest(ident.SHA512, "a")
	cache := peer.NewStateCache()
	cache.Publish(model.Node{Version: model.Version, Node: "node2", Disks: map[string]model.Disk{"disk1": {Copies: model.NewCopies(model.Copy{ID: ident.ID{Name: "parrot", UUID: "0000000a"}, State: model.Ready, Size: 512, SHA512: want, ManifestDigest: plantest.Digest(ident.SHA256, "chunks")})}}})
	client := peer.NewClient(nil, nil)
	local, _ := system.New(fetch.Client{}, client, slog.New(slog.DiscardHandler), true)
	defer local.Close()
	s := newPeers(local, newLedger())
	var sources func() []peer.Source
	for i := range 2 {
		server := httptest.NewServer(peer.NewServer(cache, nil).Handler())
		defer server.Close()
		d := plan.Desired{Node: "node1", Config: schema.Config{Nodes: map[string]schema.Node{
			"node2": {Address: server.URL, Disks: map[string]schema.Disk{"disk1": {}}},
		}}}
		local.Follow(t.Context(), targetsOf(d))
		for local.Waiting() {
			<-local.Changed()
		}
		if i == 0 {
			_, sources = s.copiesFor(d, plan.Observed{}, plan.Action{Op: model.Sync, Image: "parrot", SourceDigest: want})
		}
		if now := sources(); len(now) != 1 || now[0].URL != server.URL {
			t.Errorf("node2 is at %s: the sources are %v", server.URL, now)
		}
	}
}

// The time for which a node has had another configuration begins with a response that has one. It goes
// on while the node changes its digest or does not respond, and begins again when it had the same one,
// or when this node had none.
func TestOtherConfigFor(t *testing.T) {
	d := plan.Desired{Config: plantest.NewConfig(2, 1), Node: "node1", Digest: "new"}
	s, now := newPeers(nil, newLedger()), time.Now()
	for i, step := range []struct {
		own, peer, problem string
		want               time.Duration
	}{
		{"new", "new", "", 0},
		{"new", "old", "no answer", 0}, // this node has a new configuration, and the other one reboots
		{"new", "old", "", 0},
		{"new", "old", "", time.Minute},
		{"new", "older", "", 2 * time.Minute},
		{"new", "", "", 3 * time.Minute},
		{"new", "", "no answer", 4 * time.Minute},
		{"newer", "", "", 5 * time.Minute},
		{"newer", "newer", "", 0},
		{"newer", "old", "", 0},
		{"newer", "old", "", time.Minute},
		{"", "old", "", 0}, // this node has an error in its own configuration
		{"newer", "old", "", 0},
		{"newer", "old", "", time.Minute},
	} {
		now = now.Add(time.Minute)
		d.Digest = step.own
		o := plan.Observed{Now: now, Disks: map[ident.DiskRef]model.Disk{}}
		s.mergeInto(d, &o, map[string]peer.Observation{"node2": {Polled: true, Problem: step.problem, LastSeen: now, LastSuccess: now, State: model.Node{ConfigDigest: step.peer}}}, now)
		if got := o.Peers["node2"].OtherConfigFor(now); got != step.want {
			t.Errorf("step %d: got %v, want %v", i+1, got, step.want)
		}
	}
}
