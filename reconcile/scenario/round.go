package scenario

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// executed is an action that was carried out.
type executed struct {
	plan.Action
	At  time.Time
	Err error // why it failed; nil: it did not
}

// executed is what has happened so far, in order.
func (w *world) executed() []executed { return w.history }

// observe lets every node that is up write its marks.
func (w *world) observe() {
	if w.observed {
		return
	}
	nodes, changed := w.upNodes(), false
	for i, o := range w.cluster().Observe(nodes) {
		for _, m := range nodes[i].UsageUpdates(o) {
			d := w.at(m.Copy.Disk)
			c := d.Copies[m.Copy.ID]
			c.InUseRecorded, c.LastUsed, c.SurplusSince, c.ClockNode = m.InUse, m.LastUsed, m.SurplusSince, m.By
			d.Copies[m.Copy.ID] = c
			changed = true
		}
	}
	if changed {
		w.invalidate()
	}
	w.observed = true // which has nothing more to mark
}

func (w *world) upNodes() []plan.Desired {
	var nodes []plan.Desired
	for _, name := range w.nodes() {
		if _, down := w.down[name]; !down {
			nodes = append(nodes, w.desired(name))
		}
	}
	return nodes
}

// plan is what all nodes that are up would do now.
func (w *world) plan() plan.Plan {
	w.observe()
	if w.cachedPlan == nil {
		p := w.cluster().Plan(w.upNodes())
		w.cachedPlan = &p
	}
	return *w.cachedPlan
}

// planOf is what one node would do now. The error says that it is down.
func (w *world) planOf(node string) (plan.Plan, error) {
	if since, down := w.down[node]; down {
		return plan.Plan{}, fmt.Errorf("node %s is down since %v ago: it plans nothing", node, w.now.Sub(since))
	}
	w.observe()
	return w.cluster().Plan([]plan.Desired{w.desired(node)}), nil
}

// How many rounds are believed to lead to rest: of one moment, and of all; and how many
// actions, which are all remembered.
const (
	mostAtOnce  = 1000
	mostRounds  = 100_000
	mostActions = 1_000_000
)

// converge lets the managers work until nothing is left but what waits for longer than
// limit from now, and returns what they did. The clock goes from one deadline to the
// next and stands limit later at the end. The error says that they do not come to rest, or
// that ctx has ended.
func (w *world) converge(ctx context.Context, limit time.Duration) ([]executed, error) {
	end, from, atOnce := w.now.Add(limit), len(w.history), 0
	for range mostRounds {
		if atOnce > mostAtOnce || len(w.history) > mostActions {
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
		w.now, atOnce = w.deadline(end), 0
		w.invalidate()
	}
	last := w.history[len(w.history)-1]
	return w.history[from:], fmt.Errorf("the managers do not come to rest: at +%v they still %s %s", w.sinceStart(w.now), last.Op, last.CopyRef())
}

// round plans once and carries it out, and reports whether that was anything.
func (w *world) round() bool {
	acted := false
	for _, a := range w.due() {
		acted = w.execute(a) || acted
	}
	return acted
}

// due are the actions of a round in their order: deletions come last.
func (w *world) due() []plan.Action {
	actions := slices.DeleteFunc(slices.Clone(w.plan().Actions), plan.Action.Idle)
	slices.SortStableFunc(actions, func(a, b plan.Action) int { return order(a) - order(b) })
	return actions
}

func order(a plan.Action) int {
	if a.Op == plan.Cleanup || a.Op == plan.Evict {
		return 1
	}
	return 0
}

// deadline is when the next of the waits may end, and end if none does before.
func (w *world) deadline(end time.Time) time.Time {
	next := end
	at := func(t time.Time) {
		if t.After(w.now) && t.Before(next) {
			next = t
		}
	}
	for _, a := range w.plan().Actions {
		at(a.Until)
	}
	s := w.base.Config.Settings
	for _, since := range w.down {
		at(since.Add(s.RecoveryWaitInterval))
	}
	for _, d := range w.disks {
		if !d.detachedAt.IsZero() {
			at(d.detachedAt.Add(s.RecoveryWaitInterval))
		}
		for _, t := range d.tries {
			at(t.RetryAt)
			at(t.Since.Add(s.RecoveryWaitInterval))
		}
		for _, c := range d.Copies {
			if s.ScrubInterval > 0 && c.State == disk.Ready {
				at(c.VerifiedAt.Add(s.ScrubInterval))
			}
		}
	}
	return next
}
