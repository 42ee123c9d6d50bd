package reconcile

import (
	"log/slog"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// One failed question to the only source stops no transfer of which the data may still flow,
// whether its disk would make the first copy or another one.
func TestHiccupStopsNoSync(t *testing.T) {
	sum := plantest.Digest(disk.SHA512, "a")
	for _, checksum := range []disk.Digest{sum, {}} {
		for which := 1; which <= 2; which++ {
			c, image := plantest.NewConfig(3, 1), plantest.NewImage("parrot")
			image.Copies, image.Checksum = 3, checksum
			c.Images["parrot"] = image
			c.Settings.RecoveryWaitInterval, c.Settings.ConcurrentReplenishPerNodeLimit = 5*time.Minute, 5
			refs := plantest.RankedDisks(c, image)
			o := plantest.EmptyDisks(c)
			o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, sum)
			for _, ref := range refs[1:] {
				o.Disks[ref].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Pending, Owned: true, PartBytes: 1 << 19, PartTotal: 1 << 20}}
				o.Running[plan.CopyRef{Disk: ref, ID: image.ID}] = true
			}
			o.Peers[refs[0].Node] = plan.Peer{Queried: true, Problem: "it does not answer in time", UnreachableFor: 11 * time.Second}
			d, o := plantest.AsNode(refs[which].Node, c, o)
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

// An ask that is stopped is "done".
func TestStoppedAskIsNoSuccess(t *testing.T) {
	_, image, refs := plantest.TwoNodes(1)
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
