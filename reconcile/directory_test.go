package reconcile

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// slowLoop is a Loop in a synctest bubble whose loads take as long as took. It gets no events, so
// that it reads the directory at its interval only.
type slowLoop struct {
	*Loop
	conf  string
	took  time.Duration
	loads int
	ended chan error
}

// startSlowLoop starts a loop. setup may change it before the start.
func startSlowLoop(t *testing.T, text string, setup func(*slowLoop)) *slowLoop {
	l := &slowLoop{conf: t.TempDir(), ended: make(chan error, 1)}
	files.Put(t, text, l.conf, "config.yaml")
	log := slog.New(slog.DiscardHandler)
	l.Loop = NewLoop(New(fetch.Client{}, nil, log, false), LoopOptions{Dir: l.conf, Interval: time.Second, Node: "node1", Log: log})
	read := l.directory.Load
	l.directory.Load = func(ctx context.Context, s configdir.Snapshot) load.Result {
		l.loads++
		select {
		case <-time.After(l.took):
		case <-ctx.Done():
		}
		return read(ctx, s)
	}
	setup(l)
	ctx, stop := context.WithCancel(t.Context())
	go l.directory.Run(ctx, nil)
	go func() { l.ended <- l.run(ctx, &replicaWatch{}) }()
	t.Cleanup(func() {
		stop()
		if err := <-l.ended; err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
	return l
}

// at returns the last round after a time.
func (l *slowLoop) at(d time.Duration) *status.View {
	time.Sleep(d) // of the bubble
	synctest.Wait()
	return l.View()
}

const slowConfig = "nodes: {node1: {disks: {disk1: {path: /nonexistent}}}}\nimages: {first: {source: {upload: {}}}}\n"

// While changed files are loaded, rounds go on with the last valid configuration, and delete
// nothing. The status shows a load that takes long, and the results are applied in order.
func TestRoundsGoOnDuringALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startSlowLoop(t, slowConfig, func(*slowLoop) {})
		v := l.at(3 * time.Second)
		if v == nil || v.Desired.Allowed != schema.Everything || !v.LoadingSince.IsZero() {
			t.Fatalf("after the first load: %+v", v)
		}
		l.took = 30 * time.Second
		files.Put(t, "nodes: {node1: {disks: {disk1: {path: /nonexistent}}}}\nimages: {second: {source: {upload: {}}}}\n", l.conf, "config.yaml")
		v = l.at(10 * time.Second)
		rounds := v.Rounds
		if v.LoadingSince.IsZero() || v.Desired.Allowed != schema.NoDeletions || !v.Desired.Loading || v.Desired.Config.Images["first"].ID.Name == "" {
			t.Errorf("during the load: allowed %s, loading since %v, images %v", v.Desired.Allowed, v.LoadingSince, v.Desired.Config.Images)
		}
		if s := v.Status(nil); !s.Config.LoadingSince.Equal(v.LoadingSince) || s.Config.Digest == "" {
			t.Errorf("the status of the configuration is %+v", s.Config)
		}
		// The file changes during the load: it is read again when the load is over.
		l.took = 5 * time.Second
		files.Put(t, slowConfig, l.conf, "config.yaml")
		v = l.at(10 * time.Second)
		if v.Rounds < rounds+9 || v.Desired.Config.Images["first"].ID.Name == "" {
			t.Errorf("%d rounds in 10 s of the load", v.Rounds-rounds)
		}
		v = l.at(15 * time.Second) // 35 s after the change: the first load is over, and the second one runs
		if _, ok := v.Desired.Config.Images["second"]; !ok || v.Desired.Allowed != schema.NoDeletions {
			t.Errorf("after the load: allowed %s, images %v", v.Desired.Allowed, v.Desired.Config.Images)
		}
		v = l.at(10 * time.Second)
		if _, ok := v.Desired.Config.Images["first"]; !ok || v.Desired.Allowed != schema.Everything || !v.LoadingSince.IsZero() || l.loads != 3 {
			t.Errorf("after %d loads: allowed %s, images %v, loading since %v", l.loads, v.Desired.Allowed, v.Desired.Config.Images, v.LoadingSince)
		}
		if v = l.at(time.Minute); l.loads != 3 || v.Desired.Allowed != schema.Everything {
			t.Errorf("%d loads of files that did not change", l.loads)
		}
	})
}

// The end of the loop ends a load at once.
func TestShutdownEndsALoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startSlowLoop(t, slowConfig, func(l *slowLoop) { l.took = time.Hour })
		time.Sleep(time.Minute)
		synctest.Wait()
		if l.loads != 1 || l.View() != nil {
			t.Errorf("%d loads, view %v, want one that has not ended", l.loads, l.View())
		}
	}) // the cleanup waits for the loop
}

// A load that had no time for everything continues without a change of the directory.
func TestUnfinishedLoadContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 3
		l := startSlowLoop(t, slowConfig, func(l *slowLoop) {
			read := l.directory.Load
			l.directory.Load = func(ctx context.Context, s configdir.Snapshot) load.Result {
				r := read(ctx, s)
				r.Unfinished = l.loads < most
				return r
			}
		})
		l.at(time.Minute)
		if l.loads != most {
			t.Errorf("%d loads, want %d", l.loads, most)
		}
	})
}

// A deletion that is put off by a load has a reason of its own.
func TestDeletionsWaitForALoad(t *testing.T) {
	d := plan.Desired{Allowed: schema.Everything}.WhileLoading()
	if d.Allowed != schema.NoDeletions || !d.Loading {
		t.Errorf("got %+v", d)
	}
	if d := (plan.Desired{Allowed: schema.ObserveOnly}).WhileLoading(); d.Allowed != schema.ObserveOnly || d.Loading {
		t.Errorf("got %+v", d)
	}
}
