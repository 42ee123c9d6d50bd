package reconcile

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// configuration is the configuration that a Loop applies: the last valid content of the config
// directory, what is wrong with the directory now, and which removals are confirmed.
type configuration struct {
	dir      string
	log      *slog.Logger
	removals configdir.RemovalConfirmer

	loaded      bool         // a configuration was applied
	result      load.Result  // the last one that was applied
	desired     plan.Desired // of result; before that, only the name of the node
	fault       string       // why the directory cannot be used; "": it can
	notDeclared string       // why result has no part for this node; "": it has one
	refused     *Reading     // the last read with a Result or Revision, if its commit was refused; nil: it was applied
}

// refuse records why the commit of a read must not be applied, until the directory has another one.
func (c *configuration) refuse(r Reading, why string) (changed bool) {
	c.refused = &r
	return c.setFault(why)
}

// setFault records why the directory cannot be used, "" if it can, and reports whether that
// changed.
func (c *configuration) setFault(fault string) (changed bool) {
	if fault == c.fault {
		return false
	}
	c.fault = fault
	if fault == "" {
		c.log.Info("config directory can be used again", "dir", c.dir)
		return true
	}
	c.removals = configdir.RemovalConfirmer{} // both reads that confirm a removal must follow the fault
	effect := "observe-only until it can be used"
	if c.loaded {
		effect = "the last valid configuration stays in effect, without deletions"
	}
	c.log.Error("config directory cannot be used", "dir", c.dir, "error", fault, "effect", effect)
	return true
}

// setRevision records that the same configuration is at another revision now.
func (c *configuration) setRevision(revision string) {
	if revision == c.result.Revision {
		return
	}
	c.desired.Revision, c.result.Revision = revision, revision
	c.log.Info("configuration unchanged at a new revision", "revision", revision, "digest", c.result.Digest)
}

// set makes a configuration the one to apply.
func (c *configuration) set(desired plan.Desired, result load.Result, notDeclared string) {
	if desired.Allowed != schema.Everything {
		c.removals = configdir.RemovalConfirmer{} // only valid configurations may confirm a removal
	}
	c.desired, c.loaded, c.result, c.notDeclared = desired, true, result, notDeclared
}

// confirmRemovals counts a read for the removals of images, if the configuration is valid. It reports
// whether the read confirmed a removal.
func (c *configuration) confirmRemovals(r Reading) (confirmed bool) {
	if c.desired.Allowed != schema.Everything {
		return false
	}
	declared := make(map[string]bool, len(c.desired.Config.Images))
	for name := range c.desired.Config.Images {
		declared[name] = true
	}
	return c.removals.Observe(r.Began, r.Ended, declared)
}

// logResult logs a configuration that is to be applied, with the warnings that it has at the wall time in the argument now.
// undeclared is why it has no part for this node, or nil. It logs nothing if a load was continued and found nothing new: it
// may never have time for everything.
func (c *configuration) logResult(desired plan.Desired, result load.Result, undeclared error, now time.Time) {
	same := func(a, b document.Problem) bool { return a.String() == b.String() }
	if c.result.Unfinished && result.Unfinished && slices.EqualFunc(c.result.Errors, result.Errors, same) {
		return
	}
	for _, p := range result.Errors {
		c.log.Error("configuration error", "problem", p.String())
	}
	for _, p := range result.WarningsAt(now) {
		c.log.Warn("configuration warning", "problem", p.String())
	}
	if undeclared != nil {
		c.log.Error("observe-only until the configuration is corrected", "error", undeclared)
	}
	c.log.Info("configuration applied", "images", len(desired.Config.Images), "allowed", desired.Allowed.String(),
		"errors", len(result.Errors), "digest", result.Digest, "revision", result.Revision)
}

// view returns the view of a round that begins now. The argument loading is since when files that
// changed are being loaded, nil if there are none.
func (c *configuration) view(loading *time.Time) *status.View {
	v := &status.View{
		Desired: c.desired, Fault: cmp.Or(c.fault, c.notDeclared), Config: c.result, Loaded: c.loaded,
		Placements: &status.PlacementCache{},
	}
	if c.loaded {
		v.Desired.Removed = c.removals.Clone().Confirmed // later reads do not change the view
	}
	if c.fault != "" {
		v.Desired.Allowed = min(v.Desired.Allowed, schema.NoDeletions)
	}
	if loading != nil {
		v.LoadingSince = *loading
		v.Desired = v.Desired.WhileLoading()
	}
	return v
}

// Apply applies what a read of the config directory found. changed reports that a Step is due.
// The error says that the Loop cannot start with its first configuration: this node is not
// declared, or another process writes to its disks and none can be used.
func (l *Loop) Apply(ctx context.Context, r Reading) (changed bool, err error) {
	r = l.config.withRefused(r)
	switch {
	case r.Fault != "":
		return l.config.setFault(r.Fault), nil
	case r.Result != nil:
		if changed, err = l.configure(ctx, r); err != nil || l.config.refused != nil {
			return changed, err
		}
	case r.Revision != nil:
		if accepted, changed := l.acceptCommit(ctx, r, *r.Revision); !accepted {
			return changed, nil
		}
		changed = true
		l.config.setRevision(*r.Revision)
	default:
		changed = l.config.setFault("")
	}
	confirmed := l.config.confirmRemovals(r)
	return changed || confirmed, nil
}

// withRefused returns the reading with what was refused before, if the directory still has it: it may be accepted now, or
// another commit has the same files.
func (c *configuration) withRefused(r Reading) Reading {
	if c.refused == nil || r.Fault != "" || r.Result != nil {
		return r
	}
	if c.refused.Result != nil {
		result := *c.refused.Result
		if r.Revision != nil {
			result.Revision = *r.Revision
		}
		r.Result, r.Revision = &result, nil
	} else if r.Revision == nil {
		r.Revision = c.refused.Revision
	}
	return r
}

// configure applies the Result of a read. At the start it fails if this node is not declared, or if
// another process has locked its disks so that none can be used. Later the node only observes in the
// first case. A single disk that is locked has a problem, at the start and later: the others work, and
// this one is opened as soon as the lock ends. A commit that the disks do not accept changes nothing.
func (l *Loop) configure(ctx context.Context, r Reading) (changed bool, err error) {
	result, atStart := *r.Result, !l.config.loaded
	desired, undeclared := plan.NewDesired(result.Loaded, l.options.Node, l.options.Disks)
	if undeclared != nil {
		if atStart && result.Allowed == schema.Everything {
			return false, undeclared
		}
		desired = desired.ObserveOnly(l.config.desired)
	}
	if atStart || l.options.SignedCommits != nil {
		l.reconciler.Observe(desired) // opens and locks the disks
	}
	if atStart {
		if err := l.reconciler.disks.onlyLocked(); err != nil {
			return false, err
		}
	}
	if accepted, changed := l.acceptCommit(ctx, r, result.Revision); !accepted {
		return changed, nil
	}
	l.config.logResult(desired, result, undeclared, l.reconciler.clock.now().Wall)
	notDeclared := ""
	if undeclared != nil && result.Allowed == schema.Everything {
		notDeclared = undeclared.Error()
	}
	l.config.set(desired, result, notDeclared)
	l.reconciler.peers.follow(ctx, desired)
	return true, nil
}

// acceptCommit reports whether the commit of a read may be applied. It is the last accepted one then. Otherwise changed
// reports that a Step is due.
func (l *Loop) acceptCommit(ctx context.Context, r Reading, commit string) (accepted, changed bool) {
	if l.options.SignedCommits != nil {
		if err := l.commits.accept(ctx, r.Checkout, commit, l.reconciler.disks.folders()); err != nil {
			return false, l.config.refuse(r, err.Error())
		}
	}
	l.config.refused = nil
	l.config.setFault("")
	return true, false
}
