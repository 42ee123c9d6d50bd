package reconcile

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
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
	return c, image, ranked(c, image).all()
}

func bare(c schema.Config) Observed {
	o := Observed{Now: goldenNow, Disks: map[schema.DiskRef]Disk{}, Peers: map[string]Peer{}, Tries: map[Key]Try{}, Running: map[Key]bool{}}
	for name, node := range c.Nodes {
		for on := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: on}
			o.Disks[ref] = Disk{UUID: name + on, Space: disk.Space{Free: 1 << 40}, Copies: map[disk.ID]Copy{}}
		}
		o.Peers[name] = Peer{Asked: true, Config: "d"}
	}
	return o
}

func of(node string, c schema.Config, o Observed) (Desired, Observed) {
	peers := map[string]Peer{}
	for name, p := range o.Peers {
		if name != node {
			peers[name] = p
		}
	}
	o.Peers = peers
	return Desired{Node: node, Config: c, Digest: "d", May: schema.Everything}, o
}

func anybodyActs(t *testing.T, plans ...Plan) {
	t.Helper()
	acts := false
	for _, p := range plans {
		for _, a := range p.Actions {
			t.Logf("%s/%s: %s: %s (until %v)", a.Node, a.Disk, a.Kind, a.Reason, a.Until)
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
	o.Peers = map[string]Peer{first.Node: {Asked: true}}
	other, _ := of(second.Node, c, o)
	other.Digest, other.May = "", schema.NoDeletions
	hearOf(o, other, peer.Observation{State: state, Polled: true}, o.Now)
	waits := other.Plan(o)

	o = bare(c)
	o.Peers = map[string]Peer{second.Node: {Asked: true}}
	mine, _ := of(first.Node, c, o)
	mine.Digest, mine.May = "", schema.NoDeletions
	o.Tries[Key{first, image.ID}] = toldTry(*state.Disks[0].Copies[0].Failure, o.Now)
	anybodyActs(t, mine.Plan(o), waits)
}

// Both have failed for long, the better ranked one for good: the other one is never
// tried again, although its next attempt was due an hour ago.
func TestOnlyTheBetterOfTwoInTroubleIsTried(t *testing.T) {
	c, image, refs := duo(1)
	o := bare(c)
	o.Tries[Key{refs[0], image.ID}] = Try{Kind: Download, Attempts: 30, Message: "no route", Link: true, Since: goldenNow.Add(-3 * time.Hour), Until: goldenNow.Add(4 * time.Minute)}
	o.Tries[Key{refs[1], image.ID}] = Try{Kind: Download, Attempts: 5, Message: "refused", Link: true, Since: goldenNow.Add(-2 * time.Hour), Until: goldenNow.Add(-time.Hour)}
	d, o := of(refs[1].Node, c, o)
	anybodyActs(t, d.Plan(o))
}

// Whoever had no way to the source for long gets its copy from the one who had, as it
// would have without that: only the first copy moves on.
func TestNoWayToTheSourceMovesOnlyTheFirstCopy(t *testing.T) {
	c, image, refs := duo(1)
	o := bare(c)
	o.Tries[Key{refs[0], image.ID}] = Try{Kind: Download, Attempts: 30, Message: "no route", Link: true, Since: goldenNow.Add(-3 * time.Hour), Until: goldenNow.Add(time.Minute)}
	wants := func(want schema.DiskRef) {
		t.Helper()
		if got := (Desired{Config: c}).scene(o).look(image).places.want; len(got) != 1 || got[0] != want {
			t.Errorf("it is wanted on %v, not on %v", got, want)
		}
	}
	wants(refs[1])
	o.Disks[refs[1]].Copies[image.ID] = Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: image.Checksum}}
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
	refused := func(try Kind) string {
		o.Tries[Key{refs[0], image.ID}] = Try{Kind: try, Attempts: 1, Disk: true, Space: 10 * gib, Since: goldenNow, Until: goldenNow}
		return (Desired{Node: refs[0].Node, Config: c, Digest: "d", May: schema.Everything}).scene(o).look(image).places.refused[refs[0]].why
	}
	const why = "not enough space: 5.0 GiB are free and 0 B reserved, 10 GiB are needed"
	if got := refused(Download); got != why {
		t.Errorf("before the first copy it is refused for %q", got)
	}
	o.Disks[refs[1]].Copies[image.ID] = Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: image.Checksum, RealSize: gib}}
	if got := refused(Download); got != "" {
		t.Errorf("beside a copy with 1 GiB of data it is refused for %q", got)
	}
	if got := refused(Sync); got != why {
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
		o.Disks[schema.DiskRef{Node: node, Disk: "disk1"}].Copies[image.ID] = Copy{Copy: disk.Copy{
			ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: sum, ManifestDigest: digestOf(disk.SHA256, letter), Size: 1 << 20,
		}}
		return sum
	}
	put("node1", "b")
	right := put("node2", "c")
	o.Peers["node1"] = Peer{Asked: true, Problem: "dead", Silent: 24 * time.Hour}
	d, o := of("node3", c, o)
	for _, a := range d.Plan(o).Actions {
		t.Logf("%s: %s from %s", a.Kind, a.Reason, a.From)
		if a.Kind == Sync && d.bytesOf(o, a) != right {
			t.Errorf("it wants %s, there is %s", d.bytesOf(o, a).Short(), right.Short())
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
	d1.Picked = map[string]bool{"other": true}
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
	o.Disks[refs[0]] = Disk{Problem: "no disk here"}
	d, o := of(refs[1].Node, c, o)
	for _, a := range d.Plan(o).Actions {
		if a.Kind == Download {
			t.Errorf("fetched anew at once: %s: %s", a.Key(), a.Reason)
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
		o.Disks[refs[0]].Copies[image.ID] = Copy{Copy: disk.Copy{ID: image.ID, State: disk.Failed, Owned: true, SHA512: digestOf(disk.SHA512, "b"), DamagedAt: goldenNow.Add(-10 * time.Second).Add(skew)}, Refuses: "the copy there failed and is in use"}
		toldAt{disks: o.Disks}.translate(-skew)
		d, o := of(refs[1].Node, c, o)
		for _, a := range d.Plan(o).Actions {
			if a.Kind == Download && a.recall.digest.IsZero() {
				t.Errorf("skew %v: other bytes will do 10 s after the copy failed", skew)
			}
		}
	}
}
