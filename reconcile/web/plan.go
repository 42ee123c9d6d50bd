package web

import (
	"net/http"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
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
	Ops     []model.Op
	Actions []plan.Action
	Running map[ident.CopyRef]bool
	Pages   pager
	Config  status.ConfigStatus
	Matches bool // no action is planned because the disks match the configuration
	// Suspended are the suspensions in effect. More is how many of them are not shown.
	Suspended []plan.Suspension
	More      int
}

func newPlan(s *snapshot, of request) (any, int) {
	q := of.query
	m := planModel{
		Node: s.doc.Node, Query: q, Summary: s.doc.Plan.Summary, Ops: slices.Concat(model.Ops, []model.Op{model.Wait, model.Blocked}), Running: s.view.Observed.Running,
	}
	m.Config, m.Suspended = s.doc.Config, s.doc.Plan.Suspended
	m.Matches = len(m.Suspended) == 0 && s.view.Desired.Allowed == schema.Everything
	m.Suspended = firstOf(m.Suspended, &m.More)
	var all []plan.Action
	for _, a := range s.doc.Plan.Actions {
		if q.matches(a.Image, a.Disk, string(a.Op), string(a.Code)) {
			all = append(all, a)
		}
	}
	m.Actions, m.Pages = part(all, actionsPerPage, q.Page, q.onPage)
	return m, http.StatusOK
}
