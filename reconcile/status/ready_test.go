package status

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func TestReadyReportsWhatStopsTheManager(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ref := ident.DiskRef{Node: "node1", Disk: "disk1"}
	good := func() *View {
		return &View{
			Loaded: true, Desired: plan.Desired{Node: "node1", Allowed: schema.Everything},
			Observed: plan.Observed{Now: now, Disks: map[ident.DiskRef]model.Disk{ref: {}}},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*View)
		want   string
	}{
		{"good", func(*View) {}, ""},
		{"mistakes", func(v *View) { v.Desired.Allowed = schema.NoDeletions }, ""},
		{"directory gone", func(v *View) { v.Fault = "gone" }, ""},
		{"one disk of two", func(v *View) {
			v.Observed.Disks[ident.DiskRef{Node: "node1", Disk: "disk2"}] = model.Disk{Problem: "away"}
		}, ""},
		{"no configuration", func(v *View) { v.Loaded, v.Fault = false, "no directory" }, "no directory"},
		{"not in it", func(v *View) { v.Desired.Allowed = schema.ObserveOnly }, "cannot be applied"},
		{"stuck", func(v *View) { v.Observed.Now = now.Add(-time.Hour) }, "1h0m0s ago"},
		{"no disk", func(v *View) { v.Observed.Disks = nil }, "no disks are declared"},
		{"its disk is away", func(v *View) { v.Observed.Disks[ref] = model.Disk{Problem: "away"} }, "disk node1/disk1: away"},
	} {
		v := good()
		tt.change(v)
		got := strings.Join(v.Unready(now, time.Minute), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if len((*View)(nil).Unready(now, time.Minute)) == 0 {
		t.Error("ready before the first round")
	}
}
