package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// exhausted returns the pace of a node whose last round took very long, so that each round that can wait is
// delayed as long as possible.
func exhausted() pace { return pace{now: system.Now, ended: time.Now(), took: time.Hour} }

func TestPace(t *testing.T) {
	now := time.Now()
	p := pace{now: func() system.Instant { return system.Instant{Steady: now} }}
	round := func(cost time.Duration) { p.measure(func() { now = now.Add(cost) }) }
	check := func(what string, want time.Duration) {
		t.Helper()
		if got := p.delay(); got != want {
			t.Errorf("%s: the delay is %v, want %v", what, got, want)
		}
	}
	check("before the first round", 0)
	round(100 * time.Millisecond)
	check("after a round", 2*time.Second)
	now = now.Add(time.Second)
	check("half of that later", time.Second)
	now = now.Add(time.Second)
	check("after the delay", 0)
	round(time.Hour)
	check("after a round that took very long", maxRoundDelay)
}

// newBurst declares n images of some bytes with two slots.
func newBurst(t *testing.T, n int) (upstream *fetchtest.Server, config string) {
	upstream = fetchtest.Start(t)
	var text strings.Builder
	text.WriteString(`settings: {allowLoopbackSources: true, concurrentReplenishPerNodeLimit: 2}` + "\nimages:\n")
	for i := range n {
		path := fmt.Sprintf("/%02d", i)
		upstream.Serve(path, fetchtest.Bytes(fetchtest.Random(uint64(i+1), 512)))
		fmt.Fprintf(&text, "  image%02d: {source: {download: {url: %q}}}\n", i, upstream.URL+path)
	}
	return upstream, text.String()
}

// While a round has to wait, the next actions of the last plan begin when jobs end, within the limit.
func TestBacklogKeepsSlotsBusy(t *testing.T) {
	t.Parallel()
	const images = 8
	_, config := newBurst(t, images)
	d := plantest.Load(t, config, newDisk(t))
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	r.round(t.Context(), d)
	r.pace = exhausted()
	for done := 0; done < images; {
		if n := len(r.jobs.running); n != min(2, images-done) {
			t.Fatalf("%d jobs run when %d have ended", n, done)
		}
		select {
		case <-r.jobs.reports.ready:
		case <-time.After(deadline):
			t.Fatalf("%d of %d jobs have ended", done, images)
		}
		ended, wait := r.continuePlan(t.Context())
		if done += len(ended); wait == 0 {
			t.Error("the round does not wait")
		}
	}
	if counts := r.jobs.totals(); counts.Done[model.Download] != images {
		t.Errorf("done: %v, failed: %v", counts.Done, counts.Failed)
	}
}

// A round cannot wait for a job that was stopped, for a deletion, or for the responses to its queries.
func TestOnlyRoundsAfterFinishedJobsWait(t *testing.T) {
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "6846a0b2"}}
	for _, tt := range []struct {
		name   string
		op     model.Op
		report report
		waits  bool
	}{
		{"a download is done", model.Download, report{}, true},
		{"a download failed", model.Download, report{err: errors.New("refused")}, true},
		{"a download was stopped", model.Download, report{err: context.Canceled, stopped: true}, false},
		{"a deletion is done", model.Cleanup, report{}, false},
		{"a deletion can be decided", model.Cleanup, report{responses: map[string]plan.Response{}}, false},
	} {
		r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), true)
		r.pace = exhausted()
		tt.report.run = newRun(plan.NewAction(tt.op, key, model.Reason{}, 0), schema.Image{})
		tt.report.run.deletion = &deletion{}
		r.jobs.add(tt.report.run)
		r.jobs.reports.add(tt.report)
		if _, wait := r.continuePlan(t.Context()); (wait > 0) != tt.waits {
			t.Errorf("%s: the round waits for %v", tt.name, wait)
		}
	}
}

// A full disk would fail the whole backlog: the next plan has to decide. A source that fails concerns
// its image only.
func TestBacklogAfterFailures(t *testing.T) {
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "6846a0b2"}}
	for _, tt := range []struct {
		err  error
		left int
	}{
		{nil, 1},
		{&fetch.Error{Class: fetch.Network, Err: errors.New("refused")}, 1},
		{&disk.NoSpaceError{Need: 2, Free: 1}, 0},
		{disk.ErrReadOnly, 0},
	} {
		r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), true)
		r.backlog.add(plan.NewAction(model.Download, ident.CopyRef{Disk: key.Disk, ID: ident.ID{Name: "other", UUID: "6846a0b2"}}, model.Reason{}, 0))
		run := newRun(plan.NewAction(model.Download, key, model.Reason{}, 0), schema.Image{})
		r.jobs.add(run)
		r.endJob(report{run: run, err: tt.err})
		if len(r.backlog.actions) != tt.left {
			t.Errorf("after %v the backlog has %d actions, want %d", tt.err, len(r.backlog.actions), tt.left)
		}
	}
}

func TestBacklogHasNoDeletions(t *testing.T) {
	action := func(op model.Op, name string) plan.Action {
		return plan.NewAction(op, ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: name, UUID: "6846a0b2"}}, model.Reason{}, 0)
	}
	scrub := action(model.Verify, "c")
	scrub.Scrub = true
	var b backlog
	for _, a := range []plan.Action{action(model.Cleanup, "a"), action(model.Evict, "b"), scrub, action(model.Verify, "d"), action(model.Backup, "d"), action(model.Sync, "e")} {
		b.add(a)
	}
	if len(b.actions) != 2 || b.actions[0].Op != model.Verify || b.actions[0].Image != "d" || b.actions[1].Op != model.Sync {
		t.Errorf("the backlog is %+v", b.actions)
	}
}

// A busy node does not plan all images again for each image that became ready. A request has its round
// at once.
func TestBurstOfJobsCostsFewRounds(t *testing.T) {
	t.Parallel()
	const images = 20
	_, config := newBurst(t, images)
	conf := t.TempDir()
	files.Put(t, config, conf, "images.yaml")
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	r.pace = exhausted()
	l := runLoop(t, r, LoopOptions{Dir: conf, Interval: time.Hour, Node: "node1", Disks: []string{newDisk(t)}, Log: slog.New(slog.DiscardHandler)})
	l.until("the first round", func(*status.View) bool { return true })
	l.until("all images done", func(*status.View) bool { return l.Counts().Done[model.Download] == images })
	if n := l.View().Rounds; n > images/2 {
		t.Errorf("%d rounds for %d images", n, images)
	}
	_, err := l.Retry(t.Context(), "image00", nil) // it does not wait for the pace
	if !errors.Is(err, ErrNothingFailed) {
		t.Error(err)
	}
	l.until("the view of that round", isReady("image00", "image19"))
}
