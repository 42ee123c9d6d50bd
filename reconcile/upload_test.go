package reconcile

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// The rejection of an upload must be temporary (503) if the planned action ends without a change
// of the configuration, and permanent otherwise. After a kill, the file of a complete upload is
// verified first.
func TestUploadRejectedStatus(t *testing.T) {
	for _, test := range []struct {
		planned plan.Action
		status  int
	}{
		{plan.Action{Op: model.Wait, Reason: model.Reason{Code: plan.CodePeerUnqueried}}, http.StatusServiceUnavailable},
		{plan.Action{Op: model.Wait, Reason: model.Reason{Code: plan.CodePeerUnsettled}}, http.StatusServiceUnavailable},
		{plan.Action{Op: model.Wait, Reason: model.Reason{Code: plan.CodeVerifyFirst}}, http.StatusServiceUnavailable},
		{plan.Action{Op: model.Verify}, http.StatusServiceUnavailable},
		{plan.Action{Op: model.Adopt}, http.StatusServiceUnavailable},
		{plan.Action{Op: model.Wait, Until: time.Unix(1, 0)}, http.StatusServiceUnavailable},
		{plan.Action{Op: model.Wait}, http.StatusConflict},
		{plan.Action{Op: model.Blocked}, http.StatusConflict},
		{plan.Action{Op: model.Sync}, http.StatusConflict},
		{plan.Action{}, http.StatusConflict},
	} {
		test.planned.Image, test.planned.Text = "parrot", "why"
		err := uploadRejected(test.planned)
		if refused, ok := errors.AsType[*httperror.Error](err); !ok || refused.Status != test.status {
			t.Errorf("%q, until %v: got %#v, want status %d", test.planned.Op, test.planned.Until, err, test.status)
		}
	}
}

// An interrupted upload can continue unless the image is ready elsewhere. Otherwise its client
// would retry without end.
func TestInterruptedUpload(t *testing.T) {
	d := plantest.Load(t, `images: {parrot: {source: {upload: {}}}}`, newDisk(t))
	image := d.Config.Images["parrot"]
	there := ident.DiskRef{Node: "node2", Disk: "disk1"}
	d.Config.Nodes["node2"] = d.Config.Nodes["node1"]
	l := NewLoop(New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false), LoopOptions{})
	defer l.reconciler.Close()
	l.reconciler.Observe(d)
	part, err := system.Folder(l.reconciler.disks.open[ident.DiskRef{Node: "node1", Disk: "disk1"}].handle).OpenPart(t.Context(), image.ID, disk.PartOptions{})
	must(t, err)
	must(t, part.Begin(disk.PartSource{Kind: model.PartFromUpload, ETag: "one", Size: 1 << 20}))
	must(t, part.Close())
	o := l.reconciler.Observe(d)
	o.Disks[there] = model.Disk{Copies: map[ident.ID]model.Copy{image.ID: plantest.ReadyCopy(image, plantest.Digest(ident.SHA512, "a"))}}
	for _, test := range []struct {
		peer model.Peer
		id   string
		want bool
	}{
		{peer: model.Peer{Queried: true, Problem: "no answer"}, id: "one", want: true},
		{peer: model.Peer{Queried: true, Problem: "no answer"}, id: "two"},
		{peer: model.Peer{Queried: true}, id: "one"},
	} {
		o.Peers = map[string]model.Peer{"node2": test.peer}
		l.view.Store(&status.View{Desired: d, Observed: o, Loaded: true})
		if got := (uploadHost{l}).Interrupted(test.id); got != test.want {
			t.Errorf("upload %s, node2 %+v: got %v", test.id, test.peer, got)
		}
	}
}
