package status

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/smallfile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// SavedCluster is a cluster as saved statuses show it, at most one status for each node. For a node
// without its own status it uses what the other nodes knew. The zero value has no status.
type SavedCluster struct {
	byNode map[string]savedStatus
}

// savedStatus is the saved status of one node.
type savedStatus struct {
	status       Status
	observed     plan.Observed       // of status
	declarations map[ident.ID]string // ImageStatus.Declaration by generation
}

// AddFile adds the status in a file. The error is an *fs.PathError if the file cannot be read.
func (s *SavedCluster) AddFile(file string) error {
	var one Status
	err := ReadSavedFile(file, &one)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return err
	}
	if err == nil {
		err = s.add(one)
	}
	if err != nil {
		return fmt.Errorf("not the output of status -o json: %w", err)
	}
	return nil
}

// add adds the status of one node. It fails if the status is incomplete, or if the node has a status
// already.
func (s *SavedCluster) add(status Status) error {
	observed, err := status.observed()
	if err != nil {
		return err
	}
	if _, exists := s.byNode[status.Node]; exists {
		return fmt.Errorf("node %s has two statuses: give one", status.Node)
	}
	one := savedStatus{status: status, observed: observed, declarations: map[ident.ID]string{}}
	for _, image := range status.Images {
		one.declarations[image.ID()] = image.Declaration
	}
	if s.byNode == nil {
		s.byNode = map[string]savedStatus{}
	}
	s.byNode[status.Node] = one
	return nil
}

// Nodes returns the nodes that have their own status, sorted.
func (s *SavedCluster) Nodes() []string { return slices.Sorted(maps.Keys(s.byNode)) }

// Unused returns the nodes that have their own status but are not declared, sorted.
func (s *SavedCluster) Unused(d plan.Desired) []string {
	return slices.DeleteFunc(s.Nodes(), func(node string) bool {
		_, declared := d.Config.Nodes[node]
		return declared
	})
}

// Desired returns the desired state of node; "" means all declared nodes. If no nodes are declared, it returns the desired
// state of the node with the only status, with the paths of its disks.
func (s *SavedCluster) Desired(result schema.Loaded, node string) ([]plan.Desired, error) {
	names := slices.Sorted(maps.Keys(result.Config.Nodes))
	var paths []string
	if len(names) == 0 {
		names = s.Nodes()
		if len(names) > 1 {
			return nil, fmt.Errorf("the configuration declares no nodes, so each node plans alone: give one --state, not %d", len(names))
		}
		paths = s.paths(names[0])
	}
	if node != "" {
		names = []string{node}
	}
	d, err := plan.NewDesired(result, names[0], paths)
	if err != nil {
		return nil, err
	}
	d.Removed = plan.AlwaysConfirmed
	nodes := make([]plan.Desired, len(names))
	for i, name := range names {
		nodes[i] = d // a copy shares the cache of ranked disks
		nodes[i].Node = name
	}
	return nodes, nil
}

// paths returns the paths of the disks of a node that has its own status, in the order of their
// names.
func (s *SavedCluster) paths(node string) []string {
	var own []DiskStatus
	for _, one := range s.byNode[node].status.Disks {
		if one.Node == node {
			own = append(own, one)
		}
	}
	slices.SortFunc(own, func(a, b DiskStatus) int { // disk10 comes after disk2
		return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	paths := make([]string, len(own))
	for i, one := range own {
		paths[i] = one.Path
	}
	return paths
}

// Knows reports whether the node has its own status, or is in the status of another node that
// queried it.
func (s *SavedCluster) Knows(node string) bool {
	_, _, known := s.latest(node)
	return known
}

// latest returns the status that knows a node best: its own status, or else a status of another node.
// It prefers a status in which the node responds, then the latest response, then the longest time
// without a response. responds reports whether the status is current for the node.
func (s *SavedCluster) latest(node string) (best savedStatus, responds, known bool) {
	if own, ok := s.byNode[node]; ok {
		return own, true, true
	}
	var bestPeer model.Peer
	for _, name := range s.Nodes() {
		one := s.byNode[name]
		p, ok := one.observed.Peers[node]
		if p.Responds() {
			p.LastResponse = one.status.Time
		}
		if ok && (!known || comparePeers(p, bestPeer) > 0) {
			best, bestPeer, responds, known = one, p, p.Responds(), true
		}
	}
	return best, responds, known
}

// comparePeers compares two observations of one node. It is positive if p is the better one.
func comparePeers(p, q model.Peer) int {
	switch {
	case p.Responds() && !q.Responds():
		return 1
	case q.Responds() && !p.Responds():
		return -1
	}
	if byResponse := p.LastResponse.Compare(q.LastResponse); byResponse != 0 || p.UnreachableSince.IsZero() != q.UnreachableSince.IsZero() {
		return cmp.Or(byResponse, p.UnreachableSince.Compare(q.UnreachableSince))
	}
	return q.UnreachableSince.Compare(p.UnreachableSince)
}

// Cluster returns what is known of the nodes that d declares, at the time of the newest status.
func (s *SavedCluster) Cluster(d plan.Desired) *plan.Cluster {
	c := &plan.Cluster{
		Now: s.now(), Disks: map[ident.DiskRef]model.Disk{}, Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{}, Jobs: map[ident.CopyRef]plan.Job{}, BeingRead: map[ident.CopyRef]bool{},
		Unreachable: map[string]model.Peer{}, CannotPrepare: map[string]map[ident.ID]string{}, BackedUp: map[ident.CopyRef]bool{},
	}
	for node := range d.Config.Nodes {
		one, responds, known := s.latest(node)
		if known {
			one.addTo(c, d, node)
		}
		if !responds {
			c.Unreachable[node] = one.unreachable(node)
		}
		c.CannotPrepare[node] = s.byNode[node].observed.CannotPrepare
	}
	for ref, seen := range c.Disks {
		for id := range seen.Copies {
			if s.byNode[ref.Node].observed.BackedUp[id] {
				c.BackedUp[ident.CopyRef{Disk: ref, ID: id}] = true
			}
		}
	}
	return c
}

// now returns the time of the newest status.
func (s *SavedCluster) now() time.Time {
	var now time.Time
	for _, one := range s.byNode {
		if one.status.Time.After(now) {
			now = one.status.Time
		}
	}
	return now
}

// unreachable returns a node that did not respond to the node of s, or is not in s.
func (s savedStatus) unreachable(node string) model.Peer {
	p := s.observed.Peers[node]
	if p.Problem == "" {
		p.Problem = "no saved status mentions it"
	}
	return p
}

// addTo adds the disks of a node to c, with their failures and jobs. The path identifies a disk,
// because the configuration of d may give it another name than the saved one.
func (s savedStatus) addTo(c *plan.Cluster, d plan.Desired, node string) {
	renamed := map[ident.DiskRef]ident.DiskRef{} // from the saved to the declared disk
	for name, declared := range d.Config.Nodes[node].Disks {
		for ref, seen := range s.observed.Disks {
			if ref.Node == node && seen.Path == declared.Path {
				renamed[ref] = ident.DiskRef{Node: node, Disk: name}
			}
		}
	}
	move := func(key ident.CopyRef) (to ident.CopyRef, ok bool) {
		disk, ok := renamed[key.Disk]
		return ident.CopyRef{Disk: disk, ID: key.ID}, ok
	}
	for ref, to := range renamed {
		c.Disks[to] = s.disk(ref)
	}
	for key := range s.observed.Running {
		if to, ok := move(key); ok {
			c.Running[to] = true
		}
	}
	for key := range s.observed.BeingRead {
		if to, ok := move(key); ok {
			c.BeingRead[to] = true
		}
	}
	for key, job := range s.observed.Jobs {
		if to, ok := move(key); ok {
			c.Jobs[to] = plan.NewJob(job.Action.Op, to)
		}
	}
	for key, f := range s.observed.Failures {
		if to, ok := move(key); ok && s.stillApplies(d, key.ID) {
			var suspects []ident.CopyRef
			for _, suspect := range f.Suspects {
				if to, ok := move(suspect); ok {
					suspects = append(suspects, to)
				}
			}
			f.Suspects = suspects
			c.Failures[to] = f
		}
	}
}

// disk returns a disk as its own node knows it. Fields that a node does not publish get their usual
// value.
func (s savedStatus) disk(ref ident.DiskRef) model.Disk {
	seen := s.observed.Disks[ref]
	seen.Copies = maps.Clone(seen.Copies)
	for id, c := range seen.Copies {
		c.Rejection, c.RejectionTemporary = "", false // the new plan decides that again
		c.HasCfg = c.HasCfg || ref.Node != s.status.Node
		seen.Copies[id] = c
	}
	return seen
}

// stillApplies reports whether a failure of an image still matters: it does if d declares the image as before.
func (s savedStatus) stillApplies(d plan.Desired, id ident.ID) bool {
	if image, declared := d.Config.Images[id.Name]; declared && image.ID == id {
		return s.declarations[id] == declaration(image)
	}
	return s.declarations[id] == ""
}

// MaxSavedFile is the size limit of a saved status or plan in bytes, because the whole file is in memory.
const MaxSavedFile = 256 << 20

// ReadSavedFile decodes a JSON file that this program saved, such as a status or a plan,
// into v. The error is an *fs.PathError if the file cannot be read, and otherwise says why its content
// is wrong.
func ReadSavedFile(file string, v any) error {
	text, err := smallfile.ReadAt(file, MaxSavedFile)
	if err != nil {
		return err
	}
	err = json.Unmarshal(text, v)
	if _, ok := errors.AsType[*json.SyntaxError](err); ok { // the user named a file of another type
		return fmt.Errorf("it is not JSON: %w", err)
	}
	return err
}
