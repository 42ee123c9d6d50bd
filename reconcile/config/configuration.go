// Package config has the configuration of a daemon: it reads the config directory (Directory), and decides which content is
// applied (Configuration), also by the signatures of commits (SignedCommits).
package config

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// Options are what a Configuration needs from its node.
type Options struct {
	Dir     string         // for messages
	Node    string         // the name of the node
	Disks   []string       // see plan.NewDesired
	Commits *SignedCommits // nil: commits need no signature
	Log     *slog.Logger
	Now     func() time.Time // the wall clock
	// Open opens and locks the disks of a desired state. It fails if no disk can be used while another process writes to one.
	Open func(plan.Desired) error
	// Opened returns the usable disks that Open opened. It is for commits only.
	Opened func() map[ident.DiskRef]*disk.Disk
}

// Configuration is the configuration that a daemon applies: the last valid content of the config
// directory, what is wrong with the directory now, and which removals are confirmed. It is for one goroutine.
type Configuration struct {
	Options
	Result  load.Result  // the last result that was applied
	Desired plan.Desired // of Result; before that, only the name of the node

	removals    configdir.RemovalConfirmer
	commits     commitMemory // unused without Commits
	loaded      bool         // a configuration was applied
	fault       string       // why the directory cannot be used; "": it can
	notDeclared string       // why Result does not declare this node; "": it does
	refused     *Reading     // the last read with a Result or Revision, if its commit was refused; nil: it was applied
}

// New returns a Configuration of a directory that was not read yet.
func New(o Options) *Configuration {
	c := &Configuration{Options: o, Desired: plan.Desired{Node: o.Node}}
	if o.Commits != nil {
		c.commits.rules = *o.Commits
	}
	return c
}

// IsKnown reports whether the config directory was read.
func (c *Configuration) IsKnown() bool { return c.loaded || c.fault != "" }

// refuse records why the commit of a read must not be applied. Later reads reconsider it: see withRefused.
func (c *Configuration) refuse(r Reading, why string) (changed bool) {
	c.refused = &r
	return c.setFault(why)
}

// setFault records why the directory cannot be used, "" if it can be used, and reports whether the
// fault changed.
func (c *Configuration) setFault(fault string) (changed bool) {
	if fault == c.fault {
		return false
	}
	c.fault = fault
	if fault == "" {
		c.Log.Info("config directory can be used again", "dir", c.Dir)
		return true
	}
	c.removals = configdir.RemovalConfirmer{} // both reads that confirm a removal must follow the fault
	effect := "observe-only until it can be used"
	if c.loaded {
		effect = "the last valid configuration stays in effect, without deletions"
	}
	c.Log.Error("config directory cannot be used", "dir", c.Dir, "error", fault, "effect", effect)
	return true
}

// setRevision records that the same configuration is at another revision now.
func (c *Configuration) setRevision(revision string) {
	if revision == c.Result.Revision {
		return
	}
	c.Desired.Revision, c.Result.Revision = revision, revision
	c.Log.Info("configuration unchanged at a new revision", "revision", revision, "digest", c.Result.Digest)
}

// set puts a configuration into effect.
func (c *Configuration) set(desired plan.Desired, result load.Result, notDeclared string) {
	if desired.Allowed != schema.Everything {
		c.removals = configdir.RemovalConfirmer{} // only valid configurations may confirm a removal
	}
	c.Desired, c.loaded, c.Result, c.notDeclared = desired, true, result, notDeclared
}

// confirmRemovals counts a read for the removals of images, if the configuration is valid. It reports
// whether the read confirmed a removal.
func (c *Configuration) confirmRemovals(r Reading) (confirmed bool) {
	if c.Desired.Allowed != schema.Everything {
		return false
	}
	declared := make(map[string]bool, len(c.Desired.Config.Images))
	for name := range c.Desired.Config.Images {
		declared[name] = true
	}
	return c.removals.Observe(r.Began, r.Ended, declared)
}

// logResult logs a configuration that is about to be applied, with its warnings at the wall time now. undeclared is why it does
// not declare this node, or nil. A continued load without a new error is not logged, because a load may be continued
// for ever.
func (c *Configuration) logResult(desired plan.Desired, result load.Result, undeclared error, now time.Time) {
	same := func(a, b document.Problem) bool { return a.String() == b.String() }
	if c.Result.Unfinished && result.Unfinished && slices.EqualFunc(c.Result.Errors, result.Errors, same) {
		return
	}
	for _, p := range result.Errors {
		c.Log.Error("configuration error", "problem", p.String())
	}
	for _, p := range result.WarningsAt(now) {
		c.Log.Warn("configuration warning", "problem", p.String())
	}
	if undeclared != nil {
		c.Log.Error("observe-only until the configuration is corrected", "error", undeclared)
	}
	c.Log.Info("configuration applied", "images", len(desired.Config.Images), "allowed", desired.Allowed.String(),
		"errors", len(result.Errors), "digest", result.Digest, "revision", result.Revision)
}

// View returns the view of a round that begins now. loading is the result of
// Directory.LoadingSince.
func (c *Configuration) View(loading time.Time) *status.View {
	v := &status.View{
		Desired: c.Desired, Fault: cmp.Or(c.fault, c.notDeclared), Config: c.Result, Loaded: c.loaded,
		Placements: &status.PlacementCache{}, LoadingSince: loading,
	}
	if c.loaded {
		v.Desired.Removed = c.removals.Clone().Confirmed // later reads do not change the view
	}
	if c.fault != "" {
		v.Desired.Allowed = min(v.Desired.Allowed, schema.NoDeletions)
	}
	if !loading.IsZero() {
		v.Desired = v.Desired.WhileLoading()
	}
	return v
}

// Apply applies what a read of the config directory found. changed reports that a round is due.
// With an error, the manager cannot start: its first configuration does not declare its node, or
// another process writes to its disks, and no disk can be used.
func (c *Configuration) Apply(ctx context.Context, r Reading) (changed bool, err error) {
	r = c.withRefused(r)
	switch {
	case r.Fault != "":
		return c.setFault(r.Fault), nil
	case r.Result != nil:
		if changed, err = c.configure(ctx, r); err != nil || c.refused != nil {
			return changed, err
		}
	case r.Revision != nil:
		if accepted, changed := c.acceptCommit(ctx, r, *r.Revision, c.Desired); !accepted {
			return changed, nil
		}
		changed = true
		c.setRevision(*r.Revision)
	default:
		changed = c.setFault("")
	}
	confirmed := c.confirmRemovals(r)
	return changed || confirmed, nil
}

// withRefused adds to a reading the Result or Revision that was refused before, if the directory still has it. It may be
// accepted now, for example because another commit has the same files.
func (c *Configuration) withRefused(r Reading) Reading {
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
// another process has locked its disks so that none can be used. Later, a node that is not
// declared only observes. If another process has locked only some disks, the other disks work. A locked
// disk has a problem until the lock ends. A commit that the disks do not accept changes nothing.
func (c *Configuration) configure(ctx context.Context, r Reading) (changed bool, err error) {
	result, atStart := *r.Result, !c.loaded
	desired, undeclared := plan.NewDesired(result.Loaded, c.Node, c.Disks)
	if undeclared != nil {
		if atStart && result.Allowed == schema.Everything {
			return false, undeclared
		}
		desired = desired.ObserveOnly(c.Desired)
	}
	if atStart {
		if err := c.Open(desired); err != nil {
			return false, err
		}
	}
	if accepted, changed := c.acceptCommit(ctx, r, result.Revision, desired); !accepted {
		return changed, nil
	}
	c.logResult(desired, result, undeclared, c.Now())
	notDeclared := ""
	if undeclared != nil && result.Allowed == schema.Everything {
		notDeclared = undeclared.Error()
	}
	c.set(desired, result, notDeclared)
	return true, nil
}

// acceptCommit reports whether the commit of a read may be applied to the disks of a desired state. If so, it records the commit as
// the last accepted one. If not, changed reports whether a round is due.
func (c *Configuration) acceptCommit(ctx context.Context, r Reading, commit string, desired plan.Desired) (accepted, changed bool) {
	if c.Commits != nil {
		_ = c.Open(desired) // without disks, the last commit of this process counts
		if err := c.commits.accept(ctx, r.Checkout, commit, c.Opened()); err != nil {
			return false, c.refuse(r, err.Error())
		}
	}
	c.refused = nil
	c.setFault("")
	return true, false
}

// RecordCommit records the applied commit on the disks that do not have it. A disk that appeared may have a commit from which
// the applied commit does not descend: then the configuration is refused. The error is why a disk does not have the commit yet.
func (c *Configuration) RecordCommit(ctx context.Context) error {
	if c.commits.current.Name == "" {
		return nil
	}
	_ = c.Open(c.Desired) // opens disks that appeared: their commits are checked before the plan
	refused, failed := c.commits.record(ctx, c.Opened())
	if refused != nil && c.refused == nil {
		revision := c.Result.Revision
		c.refuse(Reading{Revision: &revision}, refused.Error())
	}
	return failed
}
