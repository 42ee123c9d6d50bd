package web

import (
	"cmp"
	"net/http"

	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

const nodesPerPage = 50

// disksModel is the nodes with their disks.
type disksModel struct {
	Here  string // the node of the daemon
	Query query
	Nodes []nodeRow
	Pages pager
}

// nodeRow is one node.
type nodeRow struct {
	Name    string
	Peer    status.PeerStatus // zero for the node of the daemon
	Problem string            // "": none
	Disks   []diskRow
}

// diskRow is one disk. The percentages are of its size, for a bar.
type diskRow struct {
	status.DiskStatus
	Known                      bool // its size is known
	Used, Reserve, ReserveFrom float64
	Evicting, NotScheduling    bool
}

func newDisks(s *snapshot, of request) (any, int) {
	q := of.query
	peers := map[string]status.PeerStatus{}
	for _, p := range s.doc.Peers {
		peers[p.Node] = p
	}
	var all []nodeRow
	for _, d := range s.doc.Disks {
		if !q.matches(d.Node, d.Name, d.Path) {
			continue
		}
		if n := len(all); n == 0 || all[n-1].Name != d.Node {
			all = append(all, nodeRow{Name: d.Node, Peer: peers[d.Node], Problem: problemOf(d.Node == s.doc.Node, peers[d.Node])})
		}
		n := &all[len(all)-1]
		n.Disks = append(n.Disks, newDiskRow(s, d))
	}
	m := disksModel{Here: s.doc.Node, Query: q}
	m.Nodes, m.Pages = part(all, nodesPerPage, q.Page, q.onPage)
	return m, http.StatusOK
}

// problemOf returns what is wrong with a node, "" for nothing.
func problemOf(here bool, p status.PeerStatus) string {
	switch {
	case here:
	case !p.Responds:
		return cmp.Or(p.Problem, "it has not responded yet")
	case p.Skew != status.SkewSame:
		return "its configuration, compared with this node: " + string(p.Skew)
	}
	return ""
}

func newDiskRow(s *snapshot, d status.DiskStatus) diskRow {
	node := s.view.Desired.Config.Nodes[d.Node]
	declared, known := node.Disks[d.Name]
	row := diskRow{
		DiskStatus: d, Known: d.Observed && d.Total > 0, Evicting: node.EvictionRequested || declared.EvictionRequested,
		NotScheduling: known && !(node.AllowScheduling && declared.AllowScheduling),
	}
	if row.Known {
		row.Used, row.Reserve = percent(d.Total-d.Free, d.Total), percent(d.Reserved, d.Total)
		row.ReserveFrom = 100 - row.Reserve
	}
	return row
}

// percent returns 100*part/all, from 0 to 100.
func percent(part, all int64) float64 {
	return max(0, min(100, float64(part)/float64(all)*100))
}
