package serve

import (
	"bytes"
	"log/slog"
	"maps"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// newHolder returns a node whose disk1 has a ready copy, with its state.
func newHolder(t *testing.T) (n *Node, d plan.Desired, o plan.Observed, on system.Disk, key ident.CopyRef) {
	t.Helper()
	path := t.TempDir()
	if _, err := disk.Init(path); err != nil {
		t.Fatal(err)
	}
	_, s := system.New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	on, _, err := s.OpenDisk(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { on.Close() })
	d = plantest.Load(t, "images: {parrot: {source: {upload: {}}}}", path)
	key = ident.CopyRef{Disk: ident.DiskRef{Node: d.Node, Disk: "disk1"}, ID: d.Config.Images["parrot"].ID}
	part, err := system.Folder(on).OpenPart(t.Context(), key.ID, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := part.Begin(disk.PartSource{ID: "test", Size: 512}); err != nil {
		t.Fatal(err)
	}
	if _, err := part.ReadFrom(bytes.NewReader(make([]byte, 512))); err != nil {
		t.Fatal(err)
	}
	c, err := part.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	o = plan.Observed{Disks: map[ident.DiskRef]model.Disk{key.Disk: {Copies: map[ident.ID]model.Copy{c.ID: c}}}}
	return &Node{}, d, o, on, key
}

// listingDisk is a Disk that calls listed after each listing.
type listingDisk struct {
	system.Disk
	listed func()
}

func (d listingDisk) List(name string) (system.Contents, error) {
	defer d.listed()
	return d.Disk.List(name)
}

// A copy is withdrawn and deleted while a slow response lists it. The response must not show
// the copy as one that stays.
func TestResponseShowsACopyWithdrawnDuringTheListingAsLeaving(t *testing.T) {
	t.Parallel()
	n, d, o, on, key := newHolder(t)
	n.Update(d, o, system.Disks{"disk1": listingDisk{on, func() {
		n.Withdraw(key)
		n.EndWithdrawals(func(ident.CopyRef) bool { return false })
	}}})
	s, err := n.Copies(t.Context(), "parrot", "")
	if err != nil || len(s.Disks) != 1 || len(s.Disks["disk1"].Copies) != 1 || !onlyCopy(s, "disk1").Leaving {
		t.Errorf("the response is %+v, %v", s, err)
	}
	n.Update(d, o, system.Disks{"disk1": on})
	if s, err := n.Copies(t.Context(), "parrot", ""); err != nil || onlyCopy(s, "disk1").Leaving || len(n.watches) > 0 {
		t.Errorf("later the response is %+v, %v", s, err)
	}
}

// Two disks show one folder of a copy. Other nodes must not count the copy twice.
func TestSharedFolderIsOneCopyForOtherNodes(t *testing.T) {
	t.Parallel()
	n, d, o, on, key := newHolder(t)
	o.Disks[ident.DiskRef{Node: d.Node, Disk: "disk2"}] = model.Disk{Copies: maps.Clone(o.Disks[key.Disk].Copies)}
	n.Update(d, o, system.Disks{"disk1": on, "disk2": on})
	queried, err := n.Copies(t.Context(), "parrot", "")
	if err != nil {
		t.Fatal(err)
	}
	o.FindSameCopies()
	for _, s := range []model.Node{queried, State(plan.NewRound(d, o), plan.Plan{}, nil)} {
		if len(s.Disks) != 2 || onlyCopy(s, "disk1").State != model.Ready || onlyCopy(s, "disk2").State != model.Unknown {
			t.Errorf("the state is %+v", s)
		}
	}
}

// onlyCopy returns the only copy on a disk.
func onlyCopy(s model.Node, disk string) model.Copy {
	for _, c := range s.Disks[disk].Copies {
		return c
	}
	return model.Copy{}
}

// TestMarkOfAnotherNode: a copy in whose folder another node has put a mark may be deleted by that node at any moment, so that
// nobody counts on it.
func TestMarkOfAnotherNode(t *testing.T) {
	n, d, o, on, key := newHolder(t)
	n.Update(d, o, system.Disks{key.Disk.Disk: on})
	isLeaving := func(want bool) {
		t.Helper()
		state, err := n.Copies(t.Context(), key.ID.Name, "")
		if got := state.Disks[key.Disk.Disk].Copies[key.ID]; err != nil || got.Leaving != want {
			t.Errorf("the copy is %+v, %v; want leaving %v", got, err, want)
		}
	}
	isLeaving(false)
	m := disk.Mark{Name: "0123456789abcdef", Secret: "fedcba9876543210"}
	if err := on.SetMark(key.ID, m); err != nil {
		t.Fatal(err)
	}
	isLeaving(true)
	if err := on.RemoveMark(key.ID, m.Name); err != nil {
		t.Fatal(err)
	}
	isLeaving(false)
}
