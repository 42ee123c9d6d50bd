package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// executed is an action in the history.
type executed struct {
	plan.Action
	at  time.Time
	err error // nil: it succeeded
}

// observe lets every node that is up record the usage of its copies.
func (w *world) observe() {
	if w.observed {
		return
	}
	nodes, changed := w.upNodes(), false
	for i, o := range w.cluster().Observe(nodes) {
		for _, u := range nodes[i].UsageUpdates(o) {
			d := w.at(u.Copy.Disk)
			c := d.Copies[u.Copy.ID]
			c.InUseRecorded, c.LastUsed, c.SurplusSince, c.ClockNode = u.InUse, u.LastUsed, u.SurplusSince, u.By
			c.Declaration = u.Declaration
			d.Copies[u.Copy.ID] = c
			changed = true
		}
	}
	if changed {
		w.invalidate()
	}
	w.observed = true // a second pass would change nothing
}

func (w *world) upNodes() []plan.Desired {
	var nodes []plan.Desired
	for _, name := range nodeNames(w.base.Config) {
		if _, down := w.down[name]; !down {
			nodes = append(nodes, w.desired(name))
		}
	}
	return nodes
}

// plan returns the plan of all nodes that are up.
func (w *world) plan() plan.Plan {
	w.observe()
	if w.cachedPlan == nil {
		p := w.cluster().Plan(w.upNodes())
		w.cachedPlan = &p
	}
	return *w.cachedPlan
}

// planOf returns the plan of one node. The error says that it is down.
func (w *world) planOf(node string) (plan.Plan, error) {
	if since, down := w.down[node]; down {
		return plan.Plan{}, fmt.Errorf("node %s has been down for %v and has no plan", node, w.now.Sub(since))
	}
	w.observe()
	return w.cluster().Plan([]plan.Desired{w.desired(node)}), nil
}

// The limits of converge. A cluster that exceeds one does not converge.
const (
	maxRoundsAtOnce = 1000 // without an advance of the clock
	maxRounds       = 100_000
	maxHistory      = 1_000_000 // actions
)

// converge lets the managers work, and returns the actions that they executed. It moves the
// clock from deadline to deadline, until limit has passed. At the end only waits beyond the
// limit are left. The error says that the cluster does not converge, or that ctx is done.
func (w *world) converge(ctx context.Context, limit time.Duration) ([]executed, error) {
	end, from, atOnce := w.now.Add(limit), len(w.history), 0
	for range maxRounds {
		if atOnce > maxRoundsAtOnce || len(w.history) > maxHistory {
			break
		}
		if ctx.Err() != nil {
			return w.history[from:], context.Cause(ctx)
		}
		if w.round() {
			atOnce++
			continue
		}
		if !w.now.Before(end) {
			return w.history[from:], nil
		}
		w.now, atOnce = w.nextDeadline(end), 0
		w.invalidate()
	}
	last := w.history[len(w.history)-1]
	return w.history[from:], fmt.Errorf("the cluster does not converge: at +%v the last action is still %s %s", w.now.Sub(w.startedAt), last.Op, last.CopyRef())
}

// round plans once and executes the plan. It reports whether it executed anything.
func (w *world) round() bool {
	worked := false
	for _, a := range w.due() {
		worked = w.execute(a) || worked
	}
	return worked
}

// due returns the actions of a round, deletions last.
func (w *world) due() []plan.Action {
	actions := slices.DeleteFunc(slices.Clone(w.plan().Actions), plan.Action.Idle)
	order := func(a plan.Action) int {
		if a.Op.Deletes() {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(actions, func(a, b plan.Action) int { return order(a) - order(b) })
	return actions
}

// nextDeadline returns the earliest time before end at which a wait may end, or end.
func (w *world) nextDeadline(end time.Time) time.Time {
	next := end
	consider := func(t time.Time) {
		if t.After(w.now) && t.Before(next) {
			next = t
		}
	}
	for _, a := range w.plan().Actions {
		consider(a.Until)
	}
	s := w.base.Config.Settings
	for _, since := range w.down {
		consider(since.Add(s.RecoveryWaitInterval))
	}
	for _, d := range w.disks {
		if !d.detachedAt.IsZero() {
			consider(d.detachedAt.Add(s.RecoveryWaitInterval))
		}
		for _, f := range d.failures {
			consider(f.RetryAt)
			consider(f.Since.Add(s.RecoveryWaitInterval))
		}
		for _, c := range d.Copies {
			if s.ScrubInterval > 0 && c.State == disk.Ready {
				consider(c.VerifiedAt.Add(s.ScrubInterval))
			}
		}
	}
	return next
}
