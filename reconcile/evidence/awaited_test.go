package evidence

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestNothingIsAwaitedWhenACopyIsReady: status shows a row for each awaited copy, and would keep that of an
// idle node until the next round, after wait has reported that the image is ready.
func TestNothingIsAwaitedWhenACopyIsReady(t *testing.T) {
	image := ident.ID{Name: "parrot", UUID: "00000001"}
	idle := ident.CopyRef{Disk: ident.DiskRef{Node: "idle", Disk: "d"}, ID: image}
	own := ident.CopyRef{Disk: ident.DiskRef{Node: "own", Disk: "d"}, ID: image}
	d := plan.Desired{Node: "own", Config: schema.Config{Images: map[string]schema.Image{"parrot": {ID: image}}, Nodes: map[string]schema.Node{
		"idle": {Disks: map[string]schema.Disk{"d": {}}}, "own": {Disks: map[string]schema.Disk{"d": {}}},
	}}}
	observed := func(on ident.CopyRef, state model.State) plan.Observed {
		copies := map[ident.ID]model.Copy{image: {ID: image, State: state}}
		return plan.Observed{Disks: map[ident.DiskRef]model.Disk{on.Disk: {Copies: copies}}}
	}
	a, start := Awaited{}, time.Unix(0, 0)
	p := plan.Plan{Awaited: []ident.CopyRef{idle}}
	for _, at := range []time.Duration{0, time.Minute} {
		a.Note(d, observed(own, model.Pending), p, start.Add(at))
	}
	if got := a.Durations(observed(own, model.Pending)); got[idle] != time.Minute {
		t.Errorf("awaited while nothing is ready: %v", got)
	}
	if got := a.Durations(observed(idle, model.Ready)); got[idle] != time.Minute {
		t.Errorf("awaited while the awaited node alone claims a ready copy: %v", got)
	}
	if got := a.Durations(observed(own, model.Ready)); len(got) > 0 {
		t.Errorf("awaited although a copy is ready: %v", got)
	}
}

// A node is awaited with one of its disks after the other. It must not get the whole time for each.
func TestDisksOfANodeAreAwaitedTogether(t *testing.T) {
	image := ident.ID{Name: "parrot", UUID: "00000001"}
	on := func(node, name string) ident.CopyRef {
		return ident.CopyRef{Disk: ident.DiskRef{Node: node, Disk: name}, ID: image}
	}
	d := plan.Desired{Config: schema.Config{Images: map[string]schema.Image{"parrot": {ID: image}}, Nodes: map[string]schema.Node{
		"n1": {Disks: map[string]schema.Disk{"a": {}, "b": {}}}, "n2": {Disks: map[string]schema.Disk{"a": {}}},
	}}}
	a, now := Awaited{}, time.Unix(0, 0)
	for _, ref := range []ident.CopyRef{on("n1", "a"), on("n1", "b"), on("n1", "a"), on("n2", "a")} {
		for range 2 {
			a.Note(d, plan.Observed{}, plan.Plan{Awaited: []ident.CopyRef{ref}}, now)
			now = now.Add(time.Minute)
		}
	}
	got := a.Durations(plan.Observed{})
	if got[on("n1", "a")] != 3*time.Minute || got[on("n1", "b")] != 2*time.Minute || got[on("n2", "a")] != time.Minute {
		t.Errorf("got %v", got)
	}
}
