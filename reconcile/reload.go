package reconcile

import (
	"context"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Reading is the outcome of one read of the config directory. Exactly one of the fields Fault,
// Result and Revision may be set; if none is, the directory has not changed.
type Reading struct {
	// Began and Ended are the steady times of the read.
	Began, Ended time.Time
	// Fault says why the directory cannot be used.
	Fault string
	// Result is a new configuration.
	Result *schema.Result
	// Revision is that of a directory whose content did not change otherwise.
	Revision string
}

// reload reads the config directory and applies what was found when it is stable. changed
// reports that a round is due; again is when to read the directory again, if not 0.
func (l *Loop) reload(ctx context.Context) (changed bool, again time.Duration, err error) {
	reading := Reading{Began: time.Now()}
	snapshot, err := configdir.Read(l.Dir)
	reading.Ended = time.Now()
	v := l.debouncer.Observe(reading.Began, reading.Ended, snapshot, err)
	switch {
	case v.Fault != nil:
		reading.Fault = v.Fault.Error()
	case v.RetryAfter > 0:
		return false, v.RetryAfter, nil
	case v.Apply:
		result := l.loader.Load(ctx, snapshot)
		if ctx.Err() != nil {
			return false, 0, nil
		}
		reading.Result = &result
	case l.loaded && snapshot.Revision != l.result.Revision:
		reading.Revision = snapshot.Revision
	}
	changed, err = l.Apply(ctx, reading)
	return changed, v.RetryAfter, err
}

// Apply applies what a read of the config directory found. changed reports that a Step is due.
// The error says that the Loop cannot start with its first configuration.
func (l *Loop) Apply(ctx context.Context, r Reading) (changed bool, err error) {
	changed = l.setFault(r.Fault)
	switch {
	case r.Fault != "":
		return changed, nil
	case r.Result != nil:
		changed = true
		if err := l.configure(ctx, *r.Result); err != nil {
			return false, err
		}
	case r.Revision != "":
		changed = true
		l.desired.Revision, l.result.Revision = r.Revision, r.Revision
		l.Log.Info("configuration is the same at another revision", "revision", r.Revision, "digest", l.result.Digest)
	}
	if l.desired.Allowed == schema.Everything {
		l.removals.Observe(r.Began, r.Ended, l.declared())
	}
	return changed, nil
}

// setFault records what is wrong with the directory as a whole, "" if nothing is, and reports
// whether that changed.
func (l *Loop) setFault(fault string) (changed bool) {
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

// configure makes a configuration the desired state. At the start it fails if this node is not
// declared; later the node then only observes.
func (l *Loop) configure(ctx context.Context, result schema.Result) error {
	l.logProblems(result)
	desired, err := plan.NewDesired(result, l.Node, l.Disks)
	l.notDeclared = ""
	switch {
	case err == nil:
	case !l.loaded && result.Allowed == schema.Everything:
		return err
	default:
		l.Log.Error("nothing is done until the configuration is right", "error", err)
		if desired = desired.ObserveOnly(l.desired); result.Allowed == schema.Everything {
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
	for _, p := range r.WarningsAt(l.reconciler.clock.now().Wall) {
		l.Log.Warn("configuration", "problem", p.String())
	}
}

// lockDisks locks the disks at the start, and fails if another manager has one of them. Later
// such a disk is a disk with a problem.
func (l *Loop) lockDisks(d plan.Desired) error {
	if l.loaded {
		return nil
	}
	l.reconciler.Observe(d)
	return l.reconciler.LockedElsewhere()
}
