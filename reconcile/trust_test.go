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

// A time in a record on a disk, in another zone, ends the daemon.
func TestTimeOnDiskPanicsThePublication(t *testing.T) {
	r, err := disk.ParseRecord([]byte(`{"owner":"backing-image-manager","created":"2026-11-20T00:00:00Z","verified":"9999-12-31T23:59:59-23:59"}`))
	if err != nil {
		t.Skip(err)
	}
	defer func() {
		if p := recover(); p != nil {
			t.Error(p)
		}
	}()
	b := peer.NewStateCache()
	b.Publish(peer.State{Node: "a", Disks: []peer.Disk{{Name: "d", Copies: []peer.Copy{copyToPeer(plan.Copy{Copy: disk.Copy{ID: disk.ID{Name: "parrot", UUID: "0000000a"}, VerifiedAt: r.VerifiedAt}})}}}})
}

// A node suspects its own copy: it neither reads nor counts it. Another one counts on it.
func TestSuspectedCopyIsCountedByOthers(t *testing.T) {
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
	o1.Disks[refs[0]] = told2(c, told)[refs[0]]
	d1, o1 := plantest.AsNode(refs[1].Node, c, o1)
	for _, a := range d1.Plan(o1).Actions {
		if a.Op.Deletes() {
			t.Errorf("%s of %s, counted on a copy that its own node does not believe in", a.Op, a.CopyRef())
		}
	}
}

func told2(c schema.Config, s peer.State) map[schema.DiskRef]plan.Disk {
	return disksFromPeer(c.Nodes, s.Node, s)
}

// A part that came from other nodes is nothing that a first copy was begun with, on whatever
// node it lies.
func TestPulledPartIsTold(t *testing.T) {
	for from, pulled := range map[string]bool{disk.PartFromPeers + " sha256:0a": true, disk.PartFromUpload: false, "": false} {
		c := plan.Copy{Copy: disk.Copy{ID: disk.ID{Name: "parrot", UUID: "0000000a"}, PartBytes: 1, PartSourceID: from}}
		if there := copyFromPeer(copyToPeer(c)); c.FromPeers() != pulled || there.FromPeers() != pulled {
			t.Errorf("part of %q: pulled is %v here and %v elsewhere", from, c.FromPeers(), there.FromPeers())
		}
	}
}
