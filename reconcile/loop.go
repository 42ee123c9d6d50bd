package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// Loop is a daemon's: it keeps the disks of one node as a config directory says,
// for as long as it runs.
type Loop struct {
	Dir      string        // the config directory
	Interval time.Duration // a look at disks and directory at least this often
	Log      *slog.Logger
	Node     string   // of the configuration
	Disks    []string // see Desire
	*Reconciler

	loader   *schema.Loader
	settler  Settler
	removals Removals
	desired  Desired
	loaded   bool   // desired is of some configuration
	fault    string // what is wrong with the directory itself
	result   schema.Result
	view     atomic.Pointer[View]
}

// View is what a loop saw and planned in its last round. It is not changed any
// more.
type View struct {
	Desired  Desired
	Observed Observed
	Plan     Plan
	// Fault says what is wrong with the config directory as a whole; Config has the
	// mistakes in its files.
	Fault  string
	Config schema.Result
}

// View returns the last round, or nil when there was none. It may be called by
// any goroutine.
func (l *Loop) View() *View { return l.view.Load() }

// Run works until ctx is done. It then stops what is under way, keeping what was
// transferred, and lets go of the disks.
func (l *Loop) Run(ctx context.Context) error {
	l.loader = schema.NewLoader()
	poke := make(chan struct{}, 1)
	var watch sync.WaitGroup
	watch.Go(func() { Watch(ctx, l.Dir, l.Interval, poke, l.reportWatch) })
	defer watch.Wait()
	tick := time.NewTicker(l.Interval)
	defer tick.Stop()
	look := time.NewTimer(0)
	defer look.Stop()
	wake := time.NewTimer(l.Interval)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return l.Close()
		case <-poke: // something may have changed in the directory
			look.Reset(l.settler.Poked(time.Now()))
			continue
		case <-look.C: // it is time to look at the directory
			taken, again, err := l.reload(ctx)
			if err != nil {
				return errors.Join(err, l.Close())
			}
			if again > 0 {
				look.Reset(again)
			}
			if !taken {
				continue
			}
		case <-tick.C: // events may have been missed, and disks have none
			look.Reset(0)
		case e := <-l.Ended(): // a job is done, which may make room for others
			l.Finish(e)
		case <-wake.C: // a wait is over
		}
		wake.Reset(l.round(ctx))
	}
}

// reload looks at the config directory and takes what may be taken.
func (l *Loop) reload(ctx context.Context) (taken bool, again time.Duration, err error) {
	began := time.Now()
	snapshot, err := schema.ReadDir(l.Dir)
	v := l.settler.Look(began, time.Now(), snapshot, err)
	if v.Fault != nil {
		if l.fault != v.Fault.Error() {
			l.Log.Error("config directory cannot be used; what it said last stands", "dir", l.Dir, "error", v.Fault)
		}
		taken = l.fault == ""
		l.fault = v.Fault.Error()
		return taken, v.Again, nil
	}
	if v.Again == 0 {
		taken, l.fault = l.fault != "", ""
	}
	if v.Take {
		if err := l.take(ctx, snapshot); err != nil {
			return false, 0, err
		}
		taken = true
	}
	if l.fault == "" && l.desired.May == schema.Everything && v.Again == 0 {
		l.removals.Look(began, l.declared())
	}
	return taken, v.Again, nil
}

func (l *Loop) declared() map[string]bool {
	names := make(map[string]bool, len(l.desired.Config.Images))
	for name := range l.desired.Config.Images {
		names[name] = true
	}
	return names
}

// take makes a new configuration the desired one. At start it fails when this node
// is not in it; later that means to serve what is there and do nothing.
func (l *Loop) take(ctx context.Context, snapshot schema.Snapshot) error {
	result := l.loader.Load(ctx, snapshot)
	for _, p := range result.Errors {
		l.Log.Error("configuration", "problem", p.String())
	}
	for _, p := range result.Warnings {
		l.Log.Warn("configuration", "problem", p.String())
	}
	desired, err := Desire(result, l.Node, l.Disks)
	if err != nil {
		if !l.loaded && result.May == schema.Everything {
			return err
		}
		l.Log.Error("nothing is done until the configuration is right", "error", err)
		desired.May = schema.ObserveOnly
	}
	desired.Removals = &l.removals
	if desired.May != schema.Everything {
		l.removals = Removals{}
	}
	l.desired, l.loaded, l.result = desired, true, result
	l.Log.Info("configuration taken", "images", len(desired.Config.Images), "errors", len(result.Errors), "digest", result.Digest)
	return nil
}

// round does one round and returns how long until a wait of the plan ends.
func (l *Loop) round(ctx context.Context) time.Duration {
	if !l.loaded {
		return l.Interval
	}
	d := l.desired
	if l.fault != "" && d.May == schema.Everything {
		d.May = schema.NoDeletions
	}
	o, plan := l.Round(ctx, d)
	d.Removals = nil // it changes; the view must not
	l.view.Store(&View{Desired: d, Observed: o, Plan: plan, Fault: l.fault, Config: l.result})
	next := l.Interval
	for _, a := range plan.Actions {
		if wait := a.Until.Sub(o.Now); !a.Until.IsZero() && wait > 0 {
			next = min(next, wait)
		}
	}
	return next
}

func (l *Loop) reportWatch(err error) {
	if err != nil {
		l.Log.Warn("no events from the config directory; it is looked at periodically", "error", err)
	}
}
