package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// surplusCopy is a cluster of three nodes, each with a copy of the one image parrot, two of
// them too many, as the node sees it whose copy is to go.
func surplusCopy(t *testing.T) (d plan.Desired, o plan.Observed, drop plan.Action, others []schema.DiskRef) {
	t.Helper()
	c := plantest.NewConfig(3, 1)
	image := plantest.NewImage("parrot")
	image.Disks = nil
	c.Images["parrot"] = image
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	refs := plantest.RankedDisks(c, image)
	o = plantest.EmptyDisks(c)
	for _, ref := range refs {
		one := plantest.ReadyCopy(image, image.Checksum)
		one.SurplusSince = plantest.Now.Add(-99 * time.Hour)
		o.Disks[ref].Copies[image.ID] = one
	}
	d, o = plantest.AsNode(refs[2].Node, c, o)
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

func responsesOf(o plan.Observed, refs []schema.DiskRef) map[string]plan.Response {
	answers := map[string]plan.Response{}
	for _, ref := range refs {
		answers[ref.Node] = plan.Response{ConfigDigest: "d", Disks: map[schema.DiskRef]plan.Disk{ref: o.Disks[ref]}}
	}
	return answers
}

// A clone is noticed between the withdrawal and the decision; the overlay forgets it.
func TestConfirmRejectsDuplicateDisks(t *testing.T) {
	d, o, drop, others := surplusCopy(t)
	asked := d.NodesToQuery(o, drop)
	twin := o.Disks[others[1]]
	twin.UUID = o.Disks[others[0]].UUID
	o.Disks[others[1]] = twin
	answers := responsesOf(o, others)
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
func TestConfirmNeedsTheSameReason(t *testing.T) {
	d, o, drop, others := surplusCopy(t)
	heard := o.WithResponses("parrot", d.NodesToQuery(o, drop), responsesOf(o, others))
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

// Between the withdrawal of a copy and the decision a node that was not asked turns out to
// have other bytes: nothing is deleted as long as copies differ.
func TestConfirmNoticesALaterConflict(t *testing.T) {
	d, o, drop, others := surplusCopy(t)
	image := d.Config.Images["parrot"]
	image.Checksum = disk.Digest{}
	d.Config.Images["parrot"] = image
	late := schema.DiskRef{Node: "late", Disk: "disk1"}
	d.Config.Nodes["late"] = d.Config.Nodes[others[0].Node]
	o.Disks[late] = plan.Disk{UUID: "late", Copies: map[disk.ID]plan.Copy{}}
	o.Peers["late"] = plan.Peer{Queried: true, ConfigDigest: "d"}
	asked, answers := d.NodesToQuery(o, drop), responsesOf(o, others)
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, answers), drop); err != nil {
		t.Fatalf("without a conflict: %v", err)
	}
	o.Disks[late].Copies[image.ID] = plantest.ReadyCopy(image, plantest.Digest(disk.SHA512, "z"))
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, answers), drop); err == nil {
		t.Error("the copy goes, although copies differ")
	}
	o.Disks[late].Copies[image.ID] = o.Disks[others[0]].Copies[image.ID]
	if err := d.ConfirmDeletion(o.WithResponses("parrot", asked, responsesOf(o, others[:0])), drop); err == nil {
		t.Error("the copy goes, counted on one that was not asked about")
	}
}

// A node is declared between the withdrawal of a copy whose image is gone and the decision:
// it was not asked whether it uses the image.
func TestConfirmNeedsResponsesOfNewNodes(t *testing.T) {
	d, o, drop, others := surplusCopy(t)
	delete(d.Config.Images, "parrot")
	answers := responsesOf(o, others)
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
