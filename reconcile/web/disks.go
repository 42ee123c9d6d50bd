package web

import (
	"cmp"
	"net/http"

	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

const nodesPerPage = 50

// disksModel is the nodes with their disks.
type disksModel struct {
	Query query
	Nodes []nodeRow
	Pages pager
}

// nodeRow is one node.
type nodeRow struct {
	Name    string
	Here    bool // it is the node of the daemon
	Peer    status.PeerStatus
	Problem string // "": none
	Link    string // to its page; "": unknown
	Disks   []diskRow
}

// diskRow is one disk. The percentages are of its size, for a bar.
type diskRow struct {
	status.DiskStatus
	Problems                []string
	Known                   bool // its size is known
	Used, Reserve           float64
	UsedBytes               int64
	Evicting, NotScheduling bool
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
			all = append(all, newNodeRow(d.Node, s.doc.Node, peers))
		}
		n := &all[len(all)-1]
		n.Disks = append(n.Disks, newDiskRow(s, d))
	}
	m := disksModel{Query: q}
	m.Nodes, m.Pages = part(all, nodesPerPage, q.Page, q.onPage)
	return m, http.StatusOK
}

func newNodeRow(name, here string, peers map[string]status.PeerStatus) nodeRow {
	row := nodeRow{Name: name, Here: name == here, Peer: peers[name]}
	switch p := row.Peer; {
	case row.Here:
	case !p.Responds:
		row.Problem = cmp.Or(p.Problem, "it has not responded yet")
	case p.Skew != status.SkewSame:
		row.Problem = "its configuration is not that of this node: " + string(p.Skew)
	}
	if !row.Here && row.Peer.Address != "" {
		row.Link = row.Peer.Address
	}
	return row
}

func newDiskRow(s *snapshot, d status.DiskStatus) diskRow {
	row := diskRow{DiskStatus: d, Problems: d.Faults(), Known: d.Observed && d.Total > 0}
	node := s.view.Desired.Config.Nodes[d.Node]
	declared := node.Disks[d.Name]
	row.Evicting = node.EvictionRequested || declared.EvictionRequested
	_, known := node.Disks[d.Name]
	row.NotScheduling = known && !(node.AllowScheduling && declared.AllowScheduling)
	if row.Known {
		row.UsedBytes = d.Total - d.Free
		row.Used = percent(row.UsedBytes, d.Total)
		row.Reserve = percent(d.Reserved, d.Total)
	}
	return row
}

// percent returns part of all in percent, from 0 to 100.
func percent(part, all int64) float64 {
	return max(0, min(100, float64(part)/float64(all)*100))
}

// ReserveFrom is where the reserve begins in the bar, in percent.
func (d diskRow) ReserveFrom() float64 { return 100 - d.Reserve }
