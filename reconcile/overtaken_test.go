package reconcile

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// goesOn reports whether an action of an image that is under way goes on in the next round.
func goesOn(d plan.Desired, o plan.Observed, a plan.Action, image schema.Image) (on bool, now plan.Plan) {
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), true)
	r.running[a.CopyRef()] = &activeJob{job: job.Job{Action: a, Image: image}, stop: func() {}}
	o.Running[a.CopyRef()] = true
	now = d.Plan(o)
	r.stopObsolete(d, now)
	return !r.running[a.CopyRef()].stopped, now
}

func failedCopy(image schema.Image, sum disk.Digest) plan.Copy {
	c := readyCopy(image, sum)
	c.State, c.Message, c.DamagedAt = disk.Failed, "it is damaged", goldenNow.Add(-time.Minute)
	return c
}

// A first copy without checksum is under way, from its source or from another image that
// has the bytes, when a node comes back that has others: they must not come beside them.
func TestFirstCopyIsOvertaken(t *testing.T) {
	theirs, ours := digestOf(disk.SHA512, "a"), digestOf(disk.SHA512, "b")
	for _, test := range []struct {
		kind          plan.Op
		sum, declared disk.Digest
		failed        bool // there is a copy that can be repaired now
		stopped       bool
	}{
		{kind: plan.Download, stopped: true},
		{kind: plan.Sync, sum: ours, stopped: true},
		{kind: plan.Sync, sum: theirs},
		{kind: plan.Sync, sum: theirs, declared: theirs},
		{kind: plan.Sync, sum: ours, failed: true, stopped: true},
		{kind: plan.Sync, sum: theirs, failed: true},
	} {
		c, image, refs := duo(2)
		image.Checksum = test.declared
		c.Images["parrot"] = image
		o := bare(c)
		o.Disks[refs[0]].Copies[image.ID] = readyCopy(image, theirs)
		if test.failed {
			o.Disks[refs[1]].Copies[image.ID] = failedCopy(image, theirs)
		}
		d, o := of(refs[1].Node, c, o)
		a := plan.NewAction(test.kind, plan.CopyRef{Disk: refs[1], ID: image.ID}, "", plan.UnknownBytes)
		a.SourceDigest = test.sum
		if on, now := goesOn(d, o, a, image); on == test.stopped {
			t.Errorf("%s of %v, declared %v, failed %v: it goes on is %v\n%+v", a.Op, a.SourceDigest, test.declared, test.failed, on, now.Actions)
		}
	}
}

// What a first copy is overtaken by, where it is declared what it has to be and where not.
func TestOvertaken(t *testing.T) {
	image, established := named("parrot"), named("parrot")
	image.Checksum = disk.Digest{}
	for _, test := range []struct {
		image    schema.Image
		is, now  plan.Op
		overtook bool
	}{
		{image, plan.Download, plan.Sync, true},
		{image, plan.Download, plan.Repair, true},
		{image, plan.Download, plan.Restore, false},
		{established, plan.Download, plan.Sync, false},
		{established, plan.Upload, plan.Sync, true},
		{established, plan.Upload, plan.Upload, false},
	} {
		if (plan.Action{Op: test.is}).SupersededBy(test.image, plan.Action{Op: test.now}) != test.overtook {
			t.Errorf("%s by %s, declared %v: %v", test.is, test.now, test.image.Checksum, !test.overtook)
		}
	}
}

// The bytes that a failed copy had are in another image on its node, but by now the image
// has others: it is not to have both.
func TestFailedCopyIsNotRepairedBesideOthers(t *testing.T) {
	theirs, ours := digestOf(disk.SHA512, "a"), digestOf(disk.SHA512, "b")
	c, image, refs := duo(2)
	image.Checksum = disk.Digest{}
	twin := named("twin")
	twin.Checksum, twin.Disks = ours, []schema.DiskRef{refs[1]}
	c.Images["parrot"], c.Images["twin"] = image, twin
	o := bare(c)
	o.Disks[refs[0]].Copies[image.ID] = readyCopy(image, theirs)
	o.Disks[refs[1]].Copies[image.ID] = failedCopy(image, ours)
	o.Disks[refs[1]].Copies[twin.ID] = readyCopy(twin, ours)
	d, o := of(refs[1].Node, c, o)
	for _, a := range d.Plan(o).Actions {
		if a.Image == "parrot" && (a.Op != plan.Sync || d.DigestOf(o, a) != theirs) {
			t.Errorf("%s (%s) from %s", a.Op, a.Reason, a.From)
		}
	}
	repair := plan.NewAction(plan.Repair, plan.CopyRef{Disk: refs[1], ID: image.ID}, "", 0)
	repair.SourceDigest = ours
	if on, now := goesOn(d, o, repair, image); on {
		t.Errorf("the repair goes on beside %+v", now.Actions)
	}
}

// A first copy of whatever bytes is under way when a node comes back whose copy failed a
// minute ago: until the recovery interval is over, no other bytes may take its place.
func TestFirstCopyIsOvertakenByARecall(t *testing.T) {
	c, image, refs := duo(1)
	image.Checksum = disk.Digest{}
	c.Images["parrot"] = image
	o := bare(c)
	d, o := of(refs[0].Node, c, o)
	a := plan.NewAction(plan.Download, plan.CopyRef{Disk: refs[0], ID: image.ID}, "", plan.UnknownBytes)
	if on, now := goesOn(d, o, a, image); !on {
		t.Errorf("stopped for nothing: %+v", now.Actions)
	}
	o.Disks[refs[1]].Copies[image.ID] = failedCopy(image, digestOf(disk.SHA512, "a"))
	if on, now := goesOn(d, o, a, image); on {
		t.Errorf("whatever comes is committed, although the plan is %+v", now.Actions)
	}
	a.Pinned = plan.PinnedDigest{Digest: digestOf(disk.SHA512, "a"), Until: goldenNow.Add(4 * time.Minute)}
	if on, now := goesOn(d, o, a, image); !on {
		t.Errorf("stopped, although it has to have those bytes: %+v", now.Actions)
	}
	delete(o.Disks[refs[1]].Copies, image.ID)
	if on, now := goesOn(d, o, a, image); !on {
		t.Errorf("stopped, although the bytes that it has to have are as good as others: %+v", now.Actions)
	}
}

// A backup goes on to the place that is declared.
func TestBackupToAnotherPlaceIsStopped(t *testing.T) {
	c, image, refs := duo(1)
	image.Backup = &schema.Backup{Target: "s3://wrong/"}
	c.Images["parrot"] = image
	o := bare(c)
	o.Disks[refs[0]].Copies[image.ID] = readyCopy(image, image.Checksum)
	d, o := of(refs[0].Node, c, o)
	a := plan.NewAction(plan.Backup, plan.CopyRef{Disk: refs[0], ID: image.ID}, "", 0)
	if on, now := goesOn(d, o, a, image); !on {
		t.Fatalf("stopped for nothing: %+v", now.Actions)
	}
	was := image
	image.Backup = &schema.Backup{Target: "s3://right/"}
	c.Images["parrot"] = image
	if on, now := goesOn(d, o, a, was); on {
		t.Errorf("it goes on to the old place; planned is %+v", now.Actions)
	}
	download := plan.NewAction(plan.Download, plan.CopyRef{Disk: refs[0], ID: image.ID}, "", 0)
	delete(o.Disks[refs[0]].Copies, image.ID)
	if on, now := goesOn(d, o, download, was); !on {
		t.Errorf("a download is stopped for the place of the backup: %+v", now.Actions)
	}
}

// A scrub has read half of a copy when somebody asks to have it read: that is not waited
// for as slowly, and what was read before is not known to be right now.
func TestScrubIsOvertakenByWhatIsAskedFor(t *testing.T) {
	c, image, refs := duo(1)
	c.Settings.ScrubInterval = time.Hour
	c.Images["parrot"] = image
	o := bare(c)
	o.Disks[refs[0]].Copies[image.ID] = readyCopy(image, image.Checksum)
	d, o := of(refs[0].Node, c, o)
	a := plan.NewAction(plan.Verify, plan.CopyRef{Disk: refs[0], ID: image.ID}, "", 0)
	a.Scrub = true
	if on, now := goesOn(d, o, a, image); !on {
		t.Fatalf("stopped for nothing: %+v", now.Actions)
	}
	d.Verify = map[plan.CopyRef]bool{a.CopyRef(): true}
	if on, now := goesOn(d, o, a, image); on {
		t.Errorf("it goes on slowly; planned is %+v", now.Actions)
	}
	a.Scrub = false
	if on, now := goesOn(d, o, a, image); !on {
		t.Errorf("what was asked for is stopped: %+v", now.Actions)
	}
}

// What is asked about a copy while something else is done to it is still to be done then.
func TestAskedDuringOtherWork(t *testing.T) {
	image := named("parrot")
	key := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk1"}, ID: image.ID}
	for _, test := range []struct {
		kind             plan.Op
		end              result
		verifies, awaits bool
	}{
		{kind: plan.Backup, verifies: true, awaits: true},
		{kind: plan.Cleanup, end: result{err: &disk.InUseError{ID: image.ID, Reason: "it is open"}}, verifies: true, awaits: true},
		{kind: plan.Cleanup, end: result{responses: map[string]plan.Response{}}, verifies: true, awaits: true},
		{kind: plan.Verify, end: result{stopped: true}, verifies: true, awaits: true},
		{kind: plan.Verify, awaits: true},
		{kind: plan.Download, end: result{err: context.Canceled, stopped: true}, verifies: true, awaits: true},
		{kind: plan.Upload, verifies: true},
		{kind: plan.Upload, end: result{err: context.Canceled, stopped: true}, verifies: true},
	} {
		l := NewLoop(New(fetch.Client{}, slog.New(slog.DiscardHandler), true), LoopOptions{})
		l.reconciler.running[key] = &activeJob{job: job.Job{Action: plan.Action{Op: test.kind}, Image: image}, stop: func() {}}
		l.reconciler.transfers.add(key, job.Transfer{Action: plan.Action{Op: test.kind}, Progress: &fetch.Progress{}})
		l.verifyRequested[key], l.uploads[key] = true, true
		test.end.key = key
		l.finish(test.end)
		if l.verifyRequested[key] != test.verifies || l.uploads[key] != test.awaits {
			t.Errorf("%s ended with %+v: to be verified %v, to be uploaded %v", test.kind, test.end, l.verifyRequested[key], l.uploads[key])
		}
	}
}

// Between the withdrawal of a copy and the decision a node that was not asked turns out to
// have other bytes: nothing is deleted as long as copies differ.
func TestConflictIsNoticedAfterAsking(t *testing.T) {
	d, o, drop, others := threeOfOne(t)
	image := d.Config.Images["parrot"]
	image.Checksum = disk.Digest{}
	d.Config.Images["parrot"] = image
	late := schema.DiskRef{Node: "late", Disk: "disk1"}
	d.Config.Nodes["late"] = d.Config.Nodes[others[0].Node]
	o.Disks[late] = plan.Disk{UUID: "late", Copies: map[disk.ID]plan.Copy{}}
	o.Peers["late"] = plan.Peer{Queried: true, ConfigDigest: "d"}
	asked, answers := d.NodesToQuery(o, drop), answersOf(o, others)
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, answers), drop); err != nil {
		t.Fatalf("without a conflict: %v", err)
	}
	o.Disks[late].Copies[image.ID] = readyCopy(image, digestOf(disk.SHA512, "z"))
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, answers), drop); err == nil {
		t.Error("the copy goes, although copies differ")
	}
	o.Disks[late].Copies[image.ID] = o.Disks[others[0]].Copies[image.ID]
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, answersOf(o, others[:0])), drop); err == nil {
		t.Error("the copy goes, counted on one that was not asked about")
	}
}

// A node is declared between the withdrawal of a copy whose image is gone and the decision:
// it was not asked whether it uses the image.
func TestUseIsAskedOfAllNodes(t *testing.T) {
	d, o, drop, others := threeOfOne(t)
	delete(d.Config.Images, "parrot")
	answers := answersOf(o, others)
	if err := d.ConfirmDeletion(o.WithResponses("parrot", d.NodesToQuery(o, drop), answers), drop); err != nil {
		t.Fatalf("all were asked: %v", err)
	}
	asked := d.NodesToQuery(o, drop)
	d.Config.Nodes["late"] = d.Config.Nodes[others[0].Node]
	o.Disks[schema.DiskRef{Node: "late", Disk: "disk1"}] = plan.Disk{UUID: "late", Copies: map[disk.ID]plan.Copy{}}
	o.Peers["late"] = plan.Peer{Queried: true, ConfigDigest: "d"}
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, answers), drop); err == nil {
		t.Error("the copy goes, and one node was not asked")
	} else if want := "node late was not asked"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}
