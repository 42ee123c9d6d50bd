package web

import (
	"net/http"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const actionsPerPage = 100

// planModel is what the daemon does next on its disks.
type planModel struct {
	Node    string
	Query   query
	Summary plan.Summary
	Counts  []opCount
	Actions []actionRow
	Pages   pager
	Config  status.ConfigStatus
	Matches bool // no action is planned because the disks match the configuration
	// Suspended is what this node leaves undone, and More how many suspensions are not shown.
	Suspended []plan.Suspension
	More      int
}

// opCount is how many actions have an operation.
type opCount struct {
	Op    model.Op
	Count int
}

// actionRow is one action.
type actionRow struct {
	plan.Action
	Running bool
}

func newPlan(s *snapshot, of request) (any, int) {
	q := of.query
	m := planModel{Node: s.doc.Node, Query: q, Summary: s.doc.Plan.Summary}
	for _, op := range append(append([]model.Op{}, model.Ops...), model.Wait, model.Blocked) {
		if n := m.Summary.Counts[op]; n > 0 {
			m.Counts = append(m.Counts, opCount{op, n})
		}
	}
	m.Config, m.Suspended = s.doc.Config, s.doc.Plan.Suspended
	m.Matches = len(m.Suspended) == 0 && s.view.Desired.Allowed == schema.Everything
	if n := len(m.Suspended); n > maxProblems {
		m.Suspended, m.More = m.Suspended[:maxProblems], n-maxProblems
	}
	var all []plan.Action
	for _, a := range s.doc.Plan.Actions {
		if q.matches(a.Image, a.Disk, string(a.Op), string(a.Code)) {
			all = append(all, a)
		}
	}
	shown, pages := part(all, actionsPerPage, q.Page, q.onPage)
	m.Pages = pages
	for _, a := range shown {
		m.Actions = append(m.Actions, actionRow{a, s.view.Observed.Running[a.CopyRef()]})
	}
	return m, http.StatusOK
}
