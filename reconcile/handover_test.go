package reconcile

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// duo are two nodes that see each other, with one disk each and nothing on them.
func duo(copies int) (schema.Config, schema.Image, []schema.DiskRef) {
	c := grid(2, 1)
	image := named("parrot")
	image.Copies = copies
	c.Images["parrot"] = image
	c.Settings.RecoveryWaitInterval = 5 * time.Minute
	c.Settings.CleanupWaitInterval = time.Hour
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	return c, image, ranked(c, image)
}

func bare(c schema.Config) plan.Observed {
	o := plan.Observed{Now: goldenNow, Disks: map[schema.DiskRef]plan.Disk{}, Peers: map[string]plan.Peer{}, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}}
	for name, node := range c.Nodes {
		for on := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: on}
			o.Disks[ref] = plan.Disk{UUID: name + on, Space: disk.Space{Free: 1 << 40}, Copies: map[disk.ID]plan.Copy{}}
		}
		o.Peers[name] = plan.Peer{Queried: true, ConfigDigest: "d"}
	}
	return o
}

func of(node string, c schema.Config, o plan.Observed) (plan.Desired, plan.Observed) {
	peers := map[string]plan.Peer{}
	for name, p := range o.Peers {
		if name != node {
			peers[name] = p
		}
	}
	o.Peers = peers
	return plan.Desired{Node: node, Config: c, Digest: "d", Allowed: schema.Everything}, o
}

func anybodyActs(t *testing.T, plans ...plan.Plan) {
	t.Helper()
	acts := false
	for _, p := range plans {
		for _, a := range p.Actions {
			t.Logf("%s/%s: %s: %s (until %v)", a.Node, a.Disk, a.Op, a.Reason, a.Until)
			acts = acts || !a.Idle()
		}
	}
	if !acts {
		t.Error("nobody does anything")
	}
}

// While a file about another image is broken (on all nodes, so that no node has a
// digest), the take-over waits for ever: only the one that failed knows it.
func TestTakeoverWhileSomethingElseIsBroken(t *testing.T) {
	c, image, refs := duo(1)
	first, second := refs[0], refs[1]
	state := peer.State{Node: first.Node, Config: "", Disks: []peer.Disk{{Name: first.Disk, UUID: "u", Free: 1 << 40, Copies: []peer.Copy{{
		Copy:    disk.Copy{ID: image.ID, State: disk.Pending},
		Failure: &peer.Failure{Action: "download", Message: "no route", Attempts: 4, Link: true, Since: -600, RetryIn: 100},
	}}}}}
	o := bare(c)
	o.Peers = map[string]plan.Peer{first.Node: {Queried: true}}
	other, _ := of(second.Node, c, o)
	other.Digest, other.Allowed = "", schema.NoDeletions
	mergeJobs(o, other, peer.Observation{State: state, Polled: true}, o.Now)
	waits := other.Plan(o)

	o = bare(c)
	o.Peers = map[string]plan.Peer{second.Node: {Queried: true}}
	mine, _ := of(first.Node, c, o)
	mine.Digest, mine.Allowed = "", schema.NoDeletions
	o.Failures[plan.CopyRef{Disk: first, ID: image.ID}] = failureFromPeer(*state.Disks[0].Copies[0].Failure, o.Now)
	anybodyActs(t, mine.Plan(o), waits)
}

// Both have failed for long, the better ranked one for good: the other one is never
// tried again, although its next attempt was due an hour ago.
func TestOnlyTheBetterOfTwoInTroubleIsTried(t *testing.T) {
	c, image, refs := duo(1)
	o := bare(c)
	o.Failures[plan.CopyRef{Disk: refs[0], ID: image.ID}] = plan.Failure{Op: plan.Download, Attempts: 30, Message: "no route", Link: true, Since: goldenNow.Add(-3 * time.Hour), RetryAt: goldenNow.Add(4 * time.Minute)}
	o.Failures[plan.CopyRef{Disk: refs[1], ID: image.ID}] = plan.Failure{Op: plan.Download, Attempts: 5, Message: "refused", Link: true, Since: goldenNow.Add(-2 * time.Hour), RetryAt: goldenNow.Add(-time.Hour)}
	d, o := of(refs[1].Node, c, o)
	anybodyActs(t, d.Plan(o))
}

// Whoever had no way to the source for long gets its copy from the one who had, as it
// would have without that: only the first copy moves on.
func TestNoWayToTheSourceMovesOnlyTheFirstCopy(t *testing.T) {
	c, image, refs := duo(1)
	o := bare(c)
	o.Failures[plan.CopyRef{Disk: refs[0], ID: image.ID}] = plan.Failure{Op: plan.Download, Attempts: 30, Message: "no route", Link: true, Since: goldenNow.Add(-3 * time.Hour), RetryAt: goldenNow.Add(time.Minute)}
	wants := func(want schema.DiskRef) {
		t.Helper()
		if got := (plan.Desired{Config: c}).NewIndex(o).NewImagePlanner(image).Placement.Targets; len(got) != 1 || got[0] != want {
			t.Errorf("it is wanted on %v, not on %v", got, want)
		}
	}
	wants(refs[1])
	o.Disks[refs[1]].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: image.Checksum}}
	wants(refs[0])
}

// A disk that was too small for all that the source promised, holes and all, takes the data
// once another one has it.
func TestADiskTooSmallForTheSourceTakesTheData(t *testing.T) {
	c, image, refs := duo(2)
	o := bare(c)
	small := o.Disks[refs[0]]
	small.Space.Free = 5 * gib
	o.Disks[refs[0]] = small
	refused := func(try plan.Op) string {
		o.Failures[plan.CopyRef{Disk: refs[0], ID: image.ID}] = plan.Failure{Op: try, Attempts: 1, Disk: true, NeedsSpace: 10 * gib, Since: goldenNow, RetryAt: goldenNow}
		return (plan.Desired{Node: refs[0].Node, Config: c, Digest: "d", Allowed: schema.Everything}).NewIndex(o).NewImagePlanner(image).Placement.Rejected[refs[0]].Reason
	}
	const why = "not enough space: 5.0 GiB are free and 0 B reserved, 10 GiB are needed"
	if got := refused(plan.Download); got != why {
		t.Errorf("before the first copy it is refused for %q", got)
	}
	o.Disks[refs[1]].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: image.Checksum, RealSize: gib}}
	if got := refused(plan.Download); got != "" {
		t.Errorf("beside a copy with 1 GiB of data it is refused for %q", got)
	}
	if got := refused(plan.Sync); got != why {
		t.Errorf("what the data itself found no room for is refused for %q", got)
	}
}

// The digest of an image without a checksum is that of a node which is silent for a
// day and sorts first, and not that of the copy that is there.
func TestSyncWantsTheBytesOfASilentNode(t *testing.T) {
	c := grid(3, 1)
	image := named("parrot")
	image.Checksum, image.Copies = disk.Digest{}, 3
	c.Images["parrot"] = image
	c.Settings.RecoveryWaitInterval = 5 * time.Minute
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	o := bare(c)
	put := func(node, letter string) disk.Digest {
		sum := digestOf(disk.SHA512, letter)
		o.Disks[schema.DiskRef{Node: node, Disk: "disk1"}].Copies[image.ID] = plan.Copy{Copy: disk.Copy{
			ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: sum, ManifestDigest: digestOf(disk.SHA256, letter), Size: 1 << 20,
		}}
		return sum
	}
	put("node1", "b")
	right := put("node2", "c")
	o.Peers["node1"] = plan.Peer{Queried: true, Problem: "dead", UnreachableFor: 24 * time.Hour}
	d, o := of("node3", c, o)
	for _, a := range d.Plan(o).Actions {
		t.Logf("%s: %s from %s", a.Op, a.Reason, a.From)
		if a.Op == plan.Sync && d.DigestOf(o, a) != right {
			t.Errorf("it wants %s, there is %s", d.DigestOf(o, a).Short(), right.Short())
		}
	}
}

// A node that answers and has the same configuration does not tell of its best ranked
// disk (its daemon was started with --disk for the other one).
func TestDiskThatNobodyLooksAfter(t *testing.T) {
	c, image, refs := duo(1)
	_ = image
	o1, o2 := bare(c), bare(c)
	d1, o1 := of(refs[0].Node, c, o1)
	d2, o2 := of(refs[1].Node, c, o2)
	d1.OnlyDisks = map[string]bool{"other": true}
	delete(o1.Disks, refs[0])
	delete(o2.Disks, refs[0])
	anybodyActs(t, d1.Plan(o1), d2.Plan(o2))
}

// A disk is not mounted yet when its manager starts (or drops out for a moment). Its copy bore
// the digest a second ago; without a declared checksum another one is established at once.
func TestDigestAnewWhileTheDiskIsAway(t *testing.T) {
	c, image, refs := duo(1)
	image.Checksum = disk.Digest{}
	c.Images["parrot"] = image
	o := bare(c)
	o.Disks[refs[0]] = plan.Disk{Problem: "no disk here"}
	d, o := of(refs[1].Node, c, o)
	for _, a := range d.Plan(o).Actions {
		if a.Op == plan.Download {
			t.Errorf("fetched anew at once: %s: %s", a.CopyRef(), a.Reason)
		}
	}
}

// The failed copy that bears the digest lies on a node whose clock is a minute ahead.
func TestRecallBySkewedClock(t *testing.T) {
	c, image, refs := duo(1)
	image.Checksum = disk.Digest{}
	c.Images["parrot"] = image
	for _, skew := range []time.Duration{0, time.Minute, -10 * time.Minute} {
		o := bare(c)
		o.Disks[refs[0]].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Failed, Owned: true, SHA512: digestOf(disk.SHA512, "b"), DamagedAt: goldenNow.Add(-10 * time.Second).Add(skew)}, Rejects: "the copy there failed and is in use"}
		peerState{disks: o.Disks}.translate(-skew)
		d, o := of(refs[1].Node, c, o)
		for _, a := range d.Plan(o).Actions {
			if a.Op == plan.Download && a.Pinned.Digest.IsZero() {
				t.Errorf("skew %v: other bytes will do 10 s after the copy failed", skew)
			}
		}
	}
}
