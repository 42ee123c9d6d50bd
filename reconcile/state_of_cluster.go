package reconcile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Snapshot is a cluster as it was: saved statuses, one for a node. Of a node without
// one it has what the others told of it. The zero value knows nothing.
type Snapshot struct {
	saved map[string]savedStatus // by node
}

type savedStatus struct {
	Status
	seen     Observed
	declares map[disk.ID]string // what was declared, as Declaration has it
}

// Add adds the status of one node. A second one of the same node is an error, as is
// what is not a whole status.
func (s *Snapshot) Add(status Status) error {
	seen, err := status.Observed()
	if err != nil {
		return err
	}
	if _, twice := s.saved[status.Node]; twice {
		return fmt.Errorf("there is another one of node %s", status.Node)
	}
	one := savedStatus{Status: status, seen: seen, declares: map[disk.ID]string{}}
	for _, image := range status.Images {
		one.declares[disk.ID{Name: image.Name, UUID: image.UUID}] = image.Declaration
	}
	if s.saved == nil {
		s.saved = map[string]savedStatus{}
	}
	s.saved[status.Node] = one
	return nil
}

// Nodes are those of which there is a status, sorted.
func (s *Snapshot) Nodes() []string { return slices.Sorted(maps.Keys(s.saved)) }

// Paths are where the disks of a node lay, in the order of their names.
func (s *Snapshot) Paths(node string) []string {
	var own []DiskStatus
	for _, one := range s.saved[node].Disks {
		if one.Node == node {
			own = append(own, one)
		}
	}
	slices.SortFunc(own, func(a, b DiskStatus) int { // disk10 is behind disk2
		return cmp.Or(cmp.Compare(len(a.Disk), len(b.Disk)), cmp.Compare(a.Disk, b.Disk))
	})
	paths := make([]string, len(own))
	for i, one := range own {
		paths[i] = one.Path
	}
	return paths
}

// Tells reports whether one of the statuses is of the node, or of one that asked it.
func (s *Snapshot) Tells(node string) bool {
	_, _, known := s.told(node)
	return known
}

// told returns the status that knows a node best: its own, else the newest to which it
// answered, else the one to which it answered last, else the one that asked in vain for
// the longest. answers says that what this has stands.
func (s *Snapshot) told(node string) (best savedStatus, answers, known bool) {
	if own, ok := s.saved[node]; ok {
		return own, true, true
	}
	var least Peer
	for _, name := range s.Nodes() {
		one := s.saved[name]
		p, asking := one.seen.Peers[node]
		if p.answers() {
			p.Last = one.Time
		}
		if asking && (!known || p.compare(least) > 0) {
			best, least, answers, known = one, p, p.answers(), true
		}
	}
	return best, answers, known
}

// compare is positive if more is known of p than of q.
func (p Peer) compare(q Peer) int {
	switch {
	case p.answers() && !q.answers():
		return 1
	case q.answers() && !p.answers():
		return -1
	}
	return cmp.Or(p.Last.Compare(q.Last), cmp.Compare(p.Silent, q.Silent))
}
