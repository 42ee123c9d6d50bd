package plan_test

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// TestScrub checks which copy is verified: the one with the oldest verification, one at a time.
func TestScrub(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	d := plantest.Load(t, `
settings: {scrubInterval: 24h}
images:
  aa: {source: {download: {url: "https://example.com/a"}}}
  bb: {source: {download: {url: "https://example.com/b"}}}
  cc: {source: {download: {url: "https://example.com/c"}}}
`, "/disk")
	ref := ident.DiskRef{Node: "node1", Disk: "disk1"}
	key := func(name string) ident.CopyRef { return ident.CopyRef{Disk: ref, ID: d.Config.Images[name].ID} }
	scrub := plan.NewAction(model.Verify, key("aa"), model.Reason{Code: plan.CodeScrub, Text: "scrub: begun before"}, 512)
	scrub.Scrub = true
	for _, tt := range []struct {
		name     string
		verified map[string]time.Duration // ago
		change   func(*plan.Desired, *plan.Observed)
		want     string
	}{
		{name: "all fresh", verified: map[string]time.Duration{"aa": time.Hour, "bb": 23 * time.Hour, "cc": 0}},
		{name: "the oldest", verified: map[string]time.Duration{"aa": 25 * time.Hour, "bb": 49 * time.Hour, "cc": 0},
			want: "bb scrub: last verified 2026-11-18T11:00:00Z"},
		{name: "the first of equally old ones", verified: map[string]time.Duration{"bb": 25 * time.Hour, "cc": 25 * time.Hour, "aa": 0},
			want: "bb scrub: last verified 2026-11-19T11:00:00Z"},
		{name: "a time in the future", verified: map[string]time.Duration{"aa": -time.Minute, "bb": 0, "cc": 0},
			want: "aa scrub: last verified 2026-11-20T12:01:00Z"},
		{name: "a running scrub continues", verified: map[string]time.Duration{"aa": 25 * time.Hour, "bb": 49 * time.Hour, "cc": 0},
			change: func(_ *plan.Desired, o *plan.Observed) {
				o.Jobs = map[ident.CopyRef]plan.Job{key("aa"): {Action: scrub}}
			},
			want: "aa scrub: begun before"},
		{name: "a running scrub ends for a request", verified: map[string]time.Duration{"aa": 25 * time.Hour, "bb": 0, "cc": 0},
			change: func(d *plan.Desired, o *plan.Observed) {
				o.Jobs = map[ident.CopyRef]plan.Job{key("aa"): {Action: scrub}}
				d.Verify = map[ident.CopyRef]bool{key("aa"): true}
			},
			want: "aa requested"},
		{name: "a copy that failed waits", verified: map[string]time.Duration{"aa": 25 * time.Hour, "bb": 49 * time.Hour, "cc": 0},
			change: func(_ *plan.Desired, o *plan.Observed) {
				o.Failures[key("bb")] = model.Failure{Attempts: 1, RetryAt: now.Add(time.Minute)}
			},
			want: "aa scrub: last verified 2026-11-19T11:00:00Z"},
		{name: "a requested verification is no scrub", verified: map[string]time.Duration{"aa": 25 * time.Hour, "bb": 0, "cc": 0},
			change: func(d *plan.Desired, _ *plan.Observed) { d.Verify = map[ident.CopyRef]bool{key("aa"): true} },
			want:   "aa requested"},
		{name: "disabled", verified: map[string]time.Duration{"aa": 1000 * time.Hour, "bb": 0, "cc": 0},
			change: func(d *plan.Desired, _ *plan.Observed) { d.Config.Settings.ScrubInterval = 0 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := d
			o := plan.Observed{Now: now, Disks: map[ident.DiskRef]model.Disk{}, Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}}
			copies := map[ident.ID]model.Copy{}
			for name, ago := range tt.verified {
				id := d.Config.Images[name].ID
				copies[id] = model.Copy{ID: id, State: model.Ready, Size: 512, Owned: true, HasCfg: true,
					SHA512: ident.SHA512.Digest(ident.SHA512.New()), ManifestDigest: ident.SHA256.Digest(ident.SHA256.New()), VerifiedAt: now.Add(-ago)}
			}
			o.Disks[ref] = model.Disk{Path: "/disk", Space: model.Space{Total: 1 << 40, Free: 1 << 40}, Copies: copies}
			if tt.change != nil {
				tt.change(&d, &o)
			}
			got := ""
			for _, a := range plan.NewRound(d, o).Plan().Actions {
				if got += a.Image + " " + a.Text; a.Op != model.Verify {
					t.Errorf("got a plan to %s, want only verify", a.Op)
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
