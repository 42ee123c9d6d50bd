package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func (c *convergence) converge(ctx context.Context, d reconcile.Desired, result schema.Result) error {
	show := newProgress(c.err)
	r := reconcile.New(fetch.Client{SecretsDir: c.secretsDir, AnyFile: true}, show.logger(), false)
	if err := c.meet(ctx, r, d); err != nil {
		return errors.Join(err, r.Close())
	}
	o := r.Look(d)
	if err := r.HeldElsewhere(); err != nil {
		return errors.Join(err, r.Close())
	}
	c.warnOfDisks(o)
	now := d.Plan(o)
	if err := c.checkPlan(d, o, now); err != nil {
		return errors.Join(err, r.Close())
	}
	worked := !now.Empty()
	stop := show.follow(r.Transfers)
	o, p, err := r.Converge(ctx, d)
	closed := r.Close() // which waits for what is under way to stop
	stop()
	if err != nil && ctx.Err() != nil {
		return errors.Join(errors.New("stopped; what was transferred is kept, and the next run goes on from there"), closed)
	}
	if err := errors.Join(err, closed, c.write(d, p, worked)); err != nil {
		return err
	}
	if d.Only != nil {
		return unfinishedOf(*d.Only, d, o, p)
	}
	return errors.Join(broken(result), unfinished(d, o, p))
}

// ownFailures are the copies on this node's disks of which something failed.
func ownFailures(d reconcile.Desired, o reconcile.Observed) []reconcile.Key {
	var keys []reconcile.Key
	for key, t := range o.Tries {
		if key.Disk.Node == d.Node && t.Attempts > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// blockedOnly counts the blocked actions of images of which nothing failed: a final
// failure is blocked as well, and would count twice.
func blockedOnly(d reconcile.Desired, o reconcile.Observed, p reconcile.Plan) int {
	failed := map[string]bool{}
	for _, key := range ownFailures(d, o) {
		failed[key.ID.Name] = true
	}
	n := 0
	for _, a := range p.Actions {
		if a.Kind == reconcile.Blocked && !failed[a.Image] {
			n++
		}
	}
	return n
}

// unfinished says what keeps a run from having been a success. Waits of clean-ups
// do not count, nor does it that there are fewer disks than copies.
func unfinished(d reconcile.Desired, o reconcile.Observed, p reconcile.Plan) error {
	var what []string
	if n := len(ownFailures(d, o)); n > 0 {
		what = append(what, fmt.Sprintf("%d failed", n))
	}
	if n := blockedOnly(d, o, p); n > 0 && len(what) > 0 {
		what = append(what, fmt.Sprintf("%d more are blocked", n)) // the plan counts those that failed as well
	} else if n > 0 {
		what = append(what, fmt.Sprintf("%d blocked", n))
	}
	if n := d.Missing(o); len(what) == 0 && n > 0 {
		what = append(what, fmt.Sprintf("%d not ready", n))
	}
	if len(what) == 0 && !p.Empty() {
		what = append(what, "more is to be done")
	}
	if len(what) == 0 {
		return nil
	}
	return errors.New("the disks do not match the configuration yet: " + strings.Join(what, ", "))
}
