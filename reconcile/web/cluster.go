package web

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

const (
	imagesPerPage = 50
	disksPerPage  = 30
)

// clusterModel is the matrix of images and disks.
type clusterModel struct {
	Config status.ConfigStatus
	Query  query
	States []stateCount // the groups of states, with links that select them
	Sort   string       // parameters of the other order
	Nodes  []nodeHead
	Rows   []imageRow
	Images pager
	Disks  pager
}

// stateCount is how many images are in a group.
type stateCount struct {
	Word, Class, Link string
	Count             int
	Selected          bool
}

// nodeHead is a node with its disks that are shown.
type nodeHead struct {
	Name        string
	Disks       []string
	Unreachable bool
}

// imageRow is one generation of an image, with its copy on each disk that is shown; nil: there is none.
type imageRow struct {
	status.ImageStatus
	Cells []*status.CopyStatus
}

func newCluster(s *snapshot, of request) (any, int) {
	doc, q := s.doc, of.query
	m := clusterModel{Config: doc.Config, Query: q}
	counts := map[string]int{}
	var all []status.ImageStatus
	for _, image := range doc.Images {
		if !q.matches(image.Name, image.Title, image.UUID) {
			continue
		}
		state := stateOf(image)
		for _, group := range []string{"", stateReady, stateUnready, stateFailed, stateUndeclared} {
			if state.in(group) {
				counts[group]++
			}
		}
		if state.in(q.State) {
			all = append(all, image)
		}
	}
	if q.Sort == "state" {
		rank := map[string]int{stateFailed: 0, stateUnready: 1, stateUndeclared: 2, stateReady: 3}
		slices.SortStableFunc(all, func(a, b status.ImageStatus) int { return cmp.Compare(rank[stateOf(a).Group], rank[stateOf(b).Group]) })
	}
	for _, g := range []stateCount{
		{Word: "all"}, {Word: "ready", Class: stateReady}, {Word: "not ready", Class: stateUnready}, {Word: "failed", Class: stateFailed}, {Word: "not declared", Class: stateUndeclared},
	} {
		selected := q
		selected.State, selected.Page = g.Class, 1
		g.Link, g.Count, g.Selected = cmp.Or(selected.String(), "?"), counts[g.Class], q.State == g.Class
		m.States = append(m.States, g)
	}
	other := q
	other.Page, other.Sort = 1, "state"
	if q.Sort != "" {
		other.Sort = ""
	}
	m.Sort = cmp.Or(other.String(), "?")
	shown, images := part(all, imagesPerPage, q.Page, q.onPage)
	disks, pages := part(doc.Disks, disksPerPage, q.Disks, func(page int) string { p := q; p.Disks = page; return p.String() })
	m.Images, m.Disks = images, pages
	column := map[ident.DiskRef]int{}
	for i, d := range disks {
		column[ident.DiskRef{Node: d.Node, Disk: d.Name}] = i
		if n := len(m.Nodes); n == 0 || m.Nodes[n-1].Name != d.Node {
			m.Nodes = append(m.Nodes, nodeHead{Name: d.Node, Unreachable: d.Unreachable != ""})
		}
		n := &m.Nodes[len(m.Nodes)-1]
		n.Disks = append(n.Disks, d.Name)
	}
	for _, image := range shown {
		row := imageRow{image, make([]*status.CopyStatus, len(disks))}
		for _, c := range image.Copies {
			if i, isShown := column[ident.DiskRef{Node: c.Node, Disk: c.Disk}]; isShown && !(c.Absent() && c.Code == "" && c.Message == "") {
				row.Cells[i] = &c
			}
		}
		m.Rows = append(m.Rows, row)
	}
	return m, http.StatusOK
}

// why returns why an image is not ready; "": it is ready, or not declared.
func why(image status.ImageStatus) string {
	switch {
	case image.Code == plan.CodeInvalidImage:
		return image.Message
	case !image.Declared, image.AllReady():
		return ""
	case image.Suspended != nil && !image.Suspended.Over:
		return "suspended: " + image.Suspended.Reason
	}
	var waiting []status.CopyStatus
	for _, c := range image.Copies {
		if c.State != model.Ready && c.Summary() != "" {
			waiting = append(waiting, c)
		}
	}
	if len(waiting) > 0 {
		c := slices.MinFunc(waiting, compareWaits)
		return c.DiskName() + ": " + c.Summary()
	}
	if image.Message == "" && len(image.PassedOver) > 0 {
		return image.PassedOver[0].Reason
	}
	return image.Message
}

// compareWaits orders copies that are not ready, the best reason why the image waits first: running transfers, failures, other
// reasons, waits for the first copy, and nodes that do not respond.
func compareWaits(a, b status.CopyStatus) int {
	rank := func(c status.CopyStatus) int {
		switch {
		case c.State == model.InProgress, c.State == model.Starting:
			return 0
		case c.State == model.Failed:
			return 1
		case c.Code == plan.CodeFirstCopy:
			return 3
		case c.Code == plan.CodePeerUnreachable, c.Code == plan.CodePeerUnqueried:
			return 4
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(b.Progress, a.Progress), cmp.Compare(a.DiskName(), b.DiskName()))
}
