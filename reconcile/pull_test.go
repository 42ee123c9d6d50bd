package reconcile

import (
	"net/http/httptest"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A transfer may take days, in which a node that has the bytes gets another address.
func TestSourcesAreWhereNodesAreNow(t *testing.T) {
	h, chunks := disk.SHA512.New(), disk.SHA256.New()
	want := disk.SHA512.Digest(h)
	board := peer.NewStateCache()
	board.Publish(peer.State{Node: "node2", Disks: []peer.Disk{{Name: "disk1", Copies: []peer.Copy{{Copy: disk.Copy{
		ID: disk.ID{Name: "parrot", UUID: "0000000a"}, State: disk.Ready, Size: 512, SHA512: want, ManifestDigest: disk.SHA256.Digest(chunks),
	}}}}}})
	client := peer.NewClient(nil, nil)
	s := peers{client: client, watch: peer.NewPoller(client)}
	defer s.close()
	var far job.PeerCopies
	for i := range 2 {
		server := httptest.NewServer(peer.NewServer(board, nil).Handler())
		defer server.Close()
		d := plan.Desired{Node: "node1", Config: schema.Config{Nodes: map[string]schema.Node{
			"node2": {Address: server.URL, Disks: map[string]schema.Disk{"disk1": {}}},
		}}}
		s.watch.SetPeers(t.Context(), s.addressesOf(d))
		for s.waiting() {
			<-s.watch.Changed()
		}
		if i == 0 {
			far = s.peerCopies(d, plan.Observed{}, plan.Action{Op: plan.Sync, Image: "parrot", SourceDigest: want})
		}
		if now := far.Sources(); len(now) != 1 || now[0].URL != server.URL {
			t.Errorf("node2 is at %s: the sources are %v", server.URL, now)
		}
	}
}
