package reconcile

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
)

// The digest of a copy that failed on another node is recalled, as it comes over the wire.
func TestRecallOverTheWire(t *testing.T) {
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
	others := &peers{states: map[string]peerState{}}
	for ref, seen := range others.disksOf(d1, refs[0].Node, peer.Observation{State: state, Polled: true, Received: now}, now) {
		o1.Disks[ref] = seen
	}
	v := d1.NewIndex(o1).NewImagePlanner(image)
	if v.PinnedDigest().Digest.IsZero() {
		t.Error("what node1 had 10 s ago is forgotten:", o1.Disks[refs[0]].Copies[image.ID].DamagedAt)
	}
}
