package plan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// surplusCopy returns a cluster of three nodes with a copy each of parrot, two of them surplus,
// as the lowest ranked node observes it, the cleanup that it plans, and the other disks.
func surplusCopy(t *testing.T) (d plan.Desired, o plan.Observed, cleanup plan.Action, others []ident.DiskRef) {
	t.Helper()
	c := plantest.NewConfig(3, 1)
	image := plantest.NewImage("parrot")
	c.Images["parrot"] = image
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	refs := plantest.RankedDisks(c, image)
	o = plantest.EmptyDisks(c)
	for _, ref := range refs {
		ready := plantest.ReadyCopy(image, image.Checksum)
		ready.SurplusSince = plantest.Now.Add(-99 * time.Hour)
		o.Disks[ref].Copies[image.ID] = ready
	}
	d, o = plantest.AsNode(refs[2].Node, c, o)
	for _, a := range plan.NewRound(d, o).Plan().Actions {
		if a.Op.Deletes() {
			cleanup = a
		}
	}
	if cleanup.Op != model.Cleanup {
		t.Fatal("no cleanup is planned")
	}
	return d, o, cleanup, refs[:2]
}

// responsesOf returns the responses of the nodes of these disks, with what o has of them. All copies
// have proven that they have their bytes.
func responsesOf(o plan.Observed, refs []ident.DiskRef) map[string]plan.Response {
	responses := map[string]plan.Response{}
	for _, ref := range refs {
		proofs := map[ident.CopyRef]plan.Proof{}
		for id := range o.Disks[ref].Copies {
			proofs[ident.CopyRef{Disk: ref, ID: id}] = plan.Proof{Result: plan.ProofPassed}
		}
		responses[ref.Node] = plan.Response{ConfigDigest: "d", Disks: map[ident.DiskRef]model.Disk{ref: o.Disks[ref]}, Proofs: proofs}
	}
	return responses
}

// Two disks turn out to have the same UUID between the withdrawal and the confirmation.
// Copies on them do not count, even if the responses have no such problem.
func TestConfirmDoesNotCountDisputedDisks(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	queried := plan.NewRound(d, o).NodesToQuery(cleanup)
	duplicate := o.Disks[others[1]]
	duplicate.UUID = o.Disks[others[0]].UUID
	o.Disks[others[1]] = duplicate
	responses := responsesOf(o, others)
	o.FindDisputedDisks()
	if o.Disks[others[0]].Disputed == "" {
		t.Fatal("the disks are not disputed")
	}
	if err := plan.NewRound(d, o.WithResponses("parrot", queried, responses)).ConfirmDeletion(cleanup); err == nil {
		t.Error("the deletion is confirmed by copies on disputed disks")
	}
}

// A copy was withdrawn for an eviction. The eviction is cancelled while the node queries its
// peers: the copy is surplus all the while, but the eviction must not be confirmed.
func TestConfirmNeedsTheSameReason(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	o = o.WithResponses("parrot", plan.NewRound(d, o).NodesToQuery(cleanup), responsesOf(o, others))
	evict := cleanup
	evict.Op = model.Evict
	for _, test := range []struct {
		withdrawn plan.Action
		confirmed bool
	}{{cleanup, true}, {evict, false}} {
		if err := plan.NewRound(d, o).ConfirmDeletion(test.withdrawn); (err == nil) != test.confirmed {
			t.Errorf("%s: %v", test.withdrawn.Op, err)
		}
		o.Jobs = map[ident.CopyRef]plan.Job{test.withdrawn.CopyRef(): {Action: test.withdrawn}}
		if _, ends := plan.NewRound(d, o).Plan().Ends[test.withdrawn.CopyRef()]; ends == test.confirmed {
			t.Errorf("a running %s ends, and a cleanup is planned: %v", test.withdrawn.Op, ends)
		}
	}
}

// A node that was not queried gets a ready copy with another digest between the withdrawal and
// the confirmation: nothing is deleted while ready copies differ. Without a conflict, only
// copies of queried nodes count.
func TestConfirmNoticesALaterConflict(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	image := d.Config.Images["parrot"]
	image.Checksum = ident.Digest{}
	d.Config.Images["parrot"] = image
	late := ident.DiskRef{Node: "late", Disk: "disk1"}
	d.Config.Nodes["late"] = d.Config.Nodes[others[0].Node]
	o.Disks[late] = model.Disk{UUID: "late", Copies: map[ident.ID]model.Copy{}}
	o.Peers["late"] = model.Peer{Queried: true, ConfigDigest: "d"}
	queried, responses := plan.NewRound(d, o).NodesToQuery(cleanup), responsesOf(o, others)
	if err := plan.NewRound(d, o.WithResponses("parrot", queried, responses)).ConfirmDeletion(cleanup); err != nil {
		t.Fatalf("without a conflict: %v", err)
	}
	o.Disks[late].Copies[image.ID] = plantest.ReadyCopy(image, plantest.Digest(ident.SHA512, "z"))
	if err := plan.NewRound(d, o.WithResponses("parrot", queried, responses)).ConfirmDeletion(cleanup); err == nil {
		t.Error("the deletion is confirmed although ready copies differ")
	}
	o.Disks[late].Copies[image.ID] = o.Disks[others[0]].Copies[image.ID]
	if err := plan.NewRound(d, o.WithResponses("parrot", queried, responsesOf(o, others[:0]))).ConfirmDeletion(cleanup); err == nil {
		t.Error("the deletion is confirmed by the copy of a node that was not queried")
	}
}

// A node is declared between the withdrawal of an orphan and the confirmation. Nothing must be
// deleted: the new node was not queried, and may use the image.
func TestConfirmNeedsResponsesOfNewNodes(t *testing.T) {
	d, o, cleanup, others := surplusCopy(t)
	delete(d.Config.Images, "parrot")
	responses := responsesOf(o, others)
	if err := plan.NewRound(d, o.WithResponses("parrot", plan.NewRound(d, o).NodesToQuery(cleanup), responses)).ConfirmDeletion(cleanup); err != nil {
		t.Fatalf("with responses of all nodes: %v", err)
	}
	queried := plan.NewRound(d, o).NodesToQuery(cleanup)
	d.Config.Nodes["late"] = d.Config.Nodes[others[0].Node]
	o.Disks[ident.DiskRef{Node: "late", Disk: "disk1"}] = model.Disk{UUID: "late", Copies: map[ident.ID]model.Copy{}}
	o.Peers["late"] = model.Peer{Queried: true, ConfigDigest: "d"}
	if err := plan.NewRound(d, o.WithResponses("parrot", queried, responses)).ConfirmDeletion(cleanup); err == nil {
		t.Error("the deletion is confirmed although a node was not queried")
	} else if want := "node late was not queried"; !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
}
