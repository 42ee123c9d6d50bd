package reconcile

import (
	"log/slog"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func readyCopy(image schema.Image, sum disk.Digest) plan.Copy {
	return plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: sum, ManifestDigest: digestOf(disk.SHA256, "m"), Size: 1 << 20}}
}

// One failed question to the only source stops no transfer of which the data may still flow,
// whether its disk would make the first copy or another one.
func TestHiccupStopsNoSync(t *testing.T) {
	sum := digestOf(disk.SHA512, "a")
	for _, checksum := range []disk.Digest{sum, {}} {
		for which := 1; which <= 2; which++ {
			c, image := grid(3, 1), named("parrot")
			image.Copies, image.Checksum = 3, checksum
			c.Images["parrot"] = image
			c.Settings.RecoveryWaitInterval, c.Settings.ConcurrentReplenishPerNodeLimit = 5*time.Minute, 5
			refs := ranked(c, image)
			o := bare(c)
			o.Disks[refs[0]].Copies[image.ID] = readyCopy(image, sum)
			for _, ref := range refs[1:] {
				o.Disks[ref].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Pending, Owned: true, PartBytes: 1 << 19, PartTotal: 1 << 20}}
				o.Running[plan.CopyRef{Disk: ref, ID: image.ID}] = true
			}
			o.Peers[refs[0].Node] = plan.Peer{Queried: true, Problem: "it does not answer in time", UnreachableFor: 11 * time.Second}
			d, o := of(refs[which].Node, c, o)
			a := plan.NewAction(plan.Sync, plan.CopyRef{Disk: refs[which], ID: image.ID}, "", plan.UnknownBytes)
			a.SourceDigest = sum
			o.Syncing = map[plan.CopyRef]bool{a.CopyRef(): true}
			if on, now := goesOn(d, o, a, image); !on {
				t.Errorf("declared %v: that to the disk of rank %d is stopped: %+v", checksum, which, now.Actions)
			}
			a.Op, o.Syncing = plan.Download, nil
			if on, now := goesOn(d, o, a, image); on && which == 2 {
				t.Errorf("declared %v: a download goes on beside one to a better disk: %+v", checksum, now.Actions)
			}
		}
	}
}

// threeOfOne is a cluster of three nodes, each with a copy of the one image parrot, two of
// them too many, as the node sees it whose copy is to go.
func threeOfOne(t *testing.T) (d plan.Desired, o plan.Observed, drop plan.Action, others []schema.DiskRef) {
	t.Helper()
	c := grid(3, 1)
	image := named("parrot")
	image.Disks = nil
	c.Images["parrot"] = image
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	refs := ranked(c, image)
	o = bare(c)
	for _, ref := range refs {
		one := readyCopy(image, image.Checksum)
		one.SurplusSince = goldenNow.Add(-99 * time.Hour)
		o.Disks[ref].Copies[image.ID] = one
	}
	d, o = of(refs[2].Node, c, o)
	for _, a := range d.Plan(o).Actions {
		if a.Op.Deletes() {
			drop = a
		}
	}
	if drop.Op != plan.Cleanup {
		t.Fatal("nothing is to be cleaned up")
	}
	return d, o, drop, refs[:2]
}

func answersOf(o plan.Observed, refs []schema.DiskRef) map[string]plan.Response {
	answers := map[string]plan.Response{}
	for _, ref := range refs {
		answers[ref.Node] = plan.Response{ConfigDigest: "d", Disks: map[schema.DiskRef]plan.Disk{ref: o.Disks[ref]}}
	}
	return answers
}

// A clone is noticed between the withdrawal and the decision; the overlay forgets it.
func TestHeardForgetsClones(t *testing.T) {
	d, o, drop, others := threeOfOne(t)
	asked := d.NodesToQuery(o, drop)
	twin := o.Disks[others[1]]
	twin.UUID = o.Disks[others[0]].UUID
	o.Disks[others[1]] = twin
	answers := answersOf(o, others)
	o.RejectDuplicateDisks()
	if o.Disks[others[0]].Problem == "" {
		t.Fatal("no clones")
	}
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, answers), drop); err == nil {
		t.Error("the copy goes, counted on two disks that are refused as clones")
	}
}

// A copy that is to be evicted is surplus, and its disk to be kept, by the time that all
// have answered: it does not go as evicted.
func TestRemovalIsForItsReason(t *testing.T) {
	d, o, drop, others := threeOfOne(t)
	heard := o.WithResponses("parrot", d.NodesToQuery(o, drop), answersOf(o, others))
	evict := drop
	evict.Op = plan.Evict
	for _, test := range []struct {
		begun plan.Action
		goes  bool
	}{{drop, true}, {evict, false}} {
		if err := d.ConfirmDeletion(heard, test.begun); (err == nil) != test.goes {
			t.Errorf("%s: %v", test.begun.Op, err)
		}
		if test.begun.SupersededBy(d.Config.Images["parrot"], drop) == test.goes {
			t.Errorf("%s goes on: %v", test.begun.Op, !test.goes)
		}
	}
}

// An ask that is stopped is "done".
func TestStoppedAskIsNoSuccess(t *testing.T) {
	_, image, refs := duo(1)
	key, other := plan.CopyRef{Disk: refs[0], ID: image.ID}, plan.CopyRef{Disk: refs[1], ID: image.ID}
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), true)
	r.running[key] = &activeJob{job: job.Job{Action: plan.Action{Op: plan.Cleanup}, Image: image}, stop: func() {}}
	r.failures[other] = failureRecord{Failure: plan.Failure{Op: plan.Sync, Suspects: []plan.CopyRef{key}}, image: image}
	r.transfers.add(key, job.Transfer{Action: plan.Action{Op: plan.Cleanup}, Progress: &fetch.Progress{}})
	r.Finish(result{key: key, responses: map[string]plan.Response{}, stopped: true})
	if n := r.Counts().Done[plan.Cleanup]; n != 0 || len(r.failures[other].Suspects) == 0 {
		t.Errorf("%d clean-ups are counted; suspects left: %v", n, r.failures[other].Suspects)
	}
}
