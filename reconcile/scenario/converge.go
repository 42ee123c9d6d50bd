package scenario

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// The limits of converge. A cluster that exceeds one does not converge.
const (
	maxPassesAtOnce = 1000 // without an advance of the clock
	maxPasses       = 100_000
	maxHistory      = 1_000_000 // actions
)

// observeAll lets the managers observe, record usage and publish until no manager observes anything
// new. They execute nothing.
func (w *world) observeAll() {
	for range maxPassesAtOnce {
		unchanged := true
		for _, n := range w.running() {
			if n.due || !n.observed.Now.Equal(w.now) {
				unchanged = false
				_ = n.converge(context.Background(), false) // it starts no job, and only jobs wait for the context
			}
		}
		if unchanged {
			return
		}
	}
}

// plan returns the plan of all nodes that are up.
func (w *world) plan() plan.Plan {
	w.observeAll()
	var plans []plan.Plan
	for _, n := range w.running() {
		plans = append(plans, n.plan)
	}
	return plan.Merge(plans)
}

// planOf returns the plan of one node. The error says that it is down.
func (w *world) planOf(node string) (plan.Plan, error) {
	if since, down := w.down[node]; down {
		return plan.Plan{}, fmt.Errorf("node %s has been down for %v and has no plan", node, w.now.Sub(since))
	}
	w.observeAll()
	return w.nodes[node].plan, nil
}

// converge lets the managers work, and returns the actions that they executed. It moves the
// clock from deadline to deadline until the duration limit has passed. At the end, only actions
// that wait longer are left. The error says that the cluster does not converge, or that ctx is done.
func (w *world) converge(ctx context.Context, limit time.Duration) ([]executed, error) {
	end, from, atOnce := w.now.Add(limit), len(w.history), 0
	w.observeAll()
	for range maxPasses {
		if atOnce > maxPassesAtOnce || len(w.history) > maxHistory {
			break
		}
		if ctx.Err() != nil {
			return w.history[from:], context.Cause(ctx)
		}
		worked, err := w.pass(ctx)
		switch {
		case errors.Is(err, errRepeats):
			return w.history[from:], doesNotConverge(w)
		case err != nil:
			return w.history[from:], err
		case worked:
			atOnce++
			continue
		case !w.now.Before(end):
			return w.history[from:], nil
		}
		w.skipTo(end)
		atOnce = 0
	}
	return w.history[from:], doesNotConverge(w)
}

func doesNotConverge(w *world) error {
	if len(w.history) == 0 {
		return errors.New("the cluster does not converge: the managers plan without end, but execute no action")
	}
	last := w.history[len(w.history)-1]
	return fmt.Errorf("the cluster does not converge: at +%v the last action is still %s %s", w.now.Sub(w.startedAt), last.Op, last.CopyRef())
}

// pass runs each manager that has something to do, one after the other. It reports whether
// there was any.
func (w *world) pass(ctx context.Context) (worked bool, err error) {
	for _, n := range w.running() {
		if n.due || n.hasWork() {
			worked = true
			if err := n.converge(ctx, true); err != nil {
				return worked, err
			}
		}
	}
	return worked, nil
}

// skipTo moves the clock to the earliest time before end at which a wait may end, or to end. The
// nodes whose waits may end then have to observe again.
func (w *world) skipTo(end time.Time) {
	for _, n := range w.nodes {
		end = n.nextDeadline(end)
	}
	w.now = end
	for _, n := range w.nodes {
		n.due = n.nextDeadline(end.Add(1)).Equal(end)
	}
}
