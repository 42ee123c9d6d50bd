package reconcile

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// logHealthChanges logs what a node and its disks began or ceased to suffer from since the last
// round: other nodes that are silent, and disks of this one that cannot be used.
func (l *Loop) logHealthChanges(d plan.Desired, o plan.Observed) {
	for _, name := range slices.Sorted(maps.Keys(o.Peers)) {
		if p := o.Peers[name]; p.Queried {
			l.logHealth("node", name, p.Problem)
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), plan.CompareDisks) {
		if d.Owns(ref) {
			l.logHealth("disk", ref.String(), o.Disks[ref].Problem)
		}
	}
}

// logHealth logs a problem when there was none, and its end.
func (l *Loop) logHealth(kind, name, problem string) {
	had, known := l.unhealthy[kind+" "+name]
	l.unhealthy[kind+" "+name] = problem != ""
	switch {
	case problem != "" && !had:
		l.Log.Warn(kind+" cannot be used", kind, name, "error", problem)
	case problem == "" && known && had:
		l.Log.Info(kind+" can be used again", kind, name)
	}
}
