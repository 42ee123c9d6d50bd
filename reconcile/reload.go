package reconcile

import (
	"context"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// reload looks at the config directory and takes what may be taken. taken says
// that something is other than before; again is when to look again, if not 0.
func (l *Loop) reload(ctx context.Context) (taken bool, again time.Duration, err error) {
	began := time.Now()
	snapshot, err := configdir.Read(l.Dir)
	ended := time.Now()
	v := l.settler.Observe(began, ended, snapshot, err)
	switch {
	case v.Fault != nil:
		return l.setFault(v.Fault.Error()), v.RetryAfter, nil
	case v.RetryAfter > 0:
		return false, v.RetryAfter, nil
	}
	taken = l.setFault("")
	if v.Apply {
		taken = true
		if err := l.apply(ctx, snapshot); err != nil {
			return false, 0, err
		}
	} else if l.loaded && snapshot.Revision != l.result.Revision {
		taken = true
		l.desired.Revision, l.result.Revision = snapshot.Revision, snapshot.Revision
		l.Log.Info("configuration is the same at another revision", "revision", snapshot.Revision, "digest", l.result.Digest)
	}
	if l.desired.Allowed == schema.Everything {
		l.removals.Observe(began, ended, l.declared())
	}
	return taken, 0, nil
}

// setFault notes what is wrong with the directory as a whole, "" when nothing is,
// and reports whether that is news.
func (l *Loop) setFault(fault string) (news bool) {
	if fault == l.fault {
		return false
	}
	l.fault = fault
	if fault == "" {
		l.Log.Info("config directory can be used again", "dir", l.Dir)
		return true
	}
	l.removals = configdir.RemovalConfirmer{}
	meanwhile := "nothing is done until it can"
	if l.loaded {
		meanwhile = "what it said last stands, and nothing is deleted"
	}
	l.Log.Error("config directory cannot be used", "dir", l.Dir, "error", fault, "meanwhile", meanwhile)
	return true
}

func (l *Loop) declared() map[string]bool {
	names := make(map[string]bool, len(l.desired.Config.Images))
	for name := range l.desired.Config.Images {
		names[name] = true
	}
	return names
}

// apply makes a new configuration the desired one. At start it fails when this node
// is not in it; later that means to watch over what is there and do nothing.
func (l *Loop) apply(ctx context.Context, snapshot configdir.Snapshot) error {
	result := l.loader.Load(ctx, snapshot)
	if ctx.Err() != nil {
		return nil
	}
	l.logProblems(result)
	desired, err := plan.NewDesired(result, l.Node, l.Disks)
	l.notDeclared = ""
	switch {
	case err == nil:
	case !l.loaded && result.May == schema.Everything:
		return err
	default:
		l.Log.Error("nothing is done until the configuration is right", "error", err)
		if desired = desired.ObserveOnly(l.desired); result.May == schema.Everything {
			l.notDeclared = err.Error()
		}
	}
	desired.Removed = l.removals.Confirmed
	if desired.Allowed != schema.Everything {
		l.removals = configdir.RemovalConfirmer{}
	}
	if err := l.lockDisks(desired); err != nil {
		return err
	}
	l.desired, l.loaded, l.result = desired, true, result
	l.reconciler.Follow(ctx, desired)
	l.Log.Info("configuration taken", "images", len(desired.Config.Images), "allowed", desired.Allowed.String(),
		"errors", len(result.Errors), "digest", result.Digest, "revision", result.Revision)
	return nil
}

func (l *Loop) logProblems(r schema.Result) {
	for _, p := range r.Errors {
		l.Log.Error("configuration", "problem", p.String())
	}
	for _, p := range r.WarningsAt(time.Now()) {
		l.Log.Warn("configuration", "problem", p.String())
	}
}

// lockDisks takes the disks at start, and fails when another manager has one of them.
// One that is taken later is a disk with a problem.
func (l *Loop) lockDisks(d plan.Desired) error {
	if l.loaded {
		return nil
	}
	l.reconciler.Observe(d)
	return l.reconciler.LockedElsewhere()
}
