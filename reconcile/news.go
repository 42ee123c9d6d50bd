package reconcile

import (
	"maps"
	"slices"
)

// logNews logs what a node and its disks began or ceased to suffer from since the last
// round: other nodes that are silent, and disks of this one that cannot be used.
func (l *Loop) logNews(d Desired, o Observed) {
	for _, name := range slices.Sorted(maps.Keys(o.Peers)) {
		if p := o.Peers[name]; p.Asked {
			l.logTrouble("node", name, p.Problem)
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), compareRefs) {
		if d.mine(ref) {
			l.logTrouble("disk", ref.String(), o.Disks[ref].Problem)
		}
	}
}

// logTrouble logs a problem when there was none, and its end.
func (l *Loop) logTrouble(kind, name, problem string) {
	had, known := l.troubled[kind+" "+name]
	l.troubled[kind+" "+name] = problem != ""
	switch {
	case problem != "" && !had:
		l.Log.Warn(kind+" cannot be used", kind, name, "error", problem)
	case problem == "" && known && had:
		l.Log.Info(kind+" can be used again", kind, name)
	}
}
