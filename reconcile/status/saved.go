package status

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// SavedCluster is a cluster as it was: saved statuses, one for a node. Of a node without
// one it has what the others told of it. The zero value knows nothing.
type SavedCluster struct {
	statuses map[string]savedStatus // by node
}

type savedStatus struct {
	Status
	observed     plan.Observed
	declarations map[disk.ID]string // what was declared, as Declaration has it
}

// AddFile adds the status in a file. A file that cannot be read is an *fs.PathError.
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
		return fmt.Errorf("not a status as status -o json prints it: %w", err)
	}
	return nil
}

// add adds the status of one node. A second one of the same node is an error, as is
// what is not a whole status.
func (s *SavedCluster) add(status Status) error {
	seen, err := status.observed()
	if err != nil {
		return err
	}
	if _, twice := s.statuses[status.Node]; twice {
		return fmt.Errorf("there is another one of node %s", status.Node)
	}
	one := savedStatus{Status: status, observed: seen, declarations: map[disk.ID]string{}}
	for _, image := range status.Images {
		one.declarations[disk.ID{Name: image.Name, UUID: image.UUID}] = image.Declaration
	}
	if s.statuses == nil {
		s.statuses = map[string]savedStatus{}
	}
	s.statuses[status.Node] = one
	return nil
}

// Nodes are those of which there is a status, sorted.
func (s *SavedCluster) Nodes() []string { return slices.Sorted(maps.Keys(s.statuses)) }

// Paths are where the disks of a node lay, in the order of their names.
func (s *SavedCluster) Paths(node string) []string {
	var own []DiskStatus
	for _, one := range s.statuses[node].Disks {
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

// Knows reports whether one of the statuses is of the node, or of one that asked it.
func (s *SavedCluster) Knows(node string) bool {
	_, _, known := s.latest(node)
	return known
}

// latest returns the status that knows a node best: its own, else the newest to which it
// answered, else the one to which it answered last, else the one that asked in vain for
// the longest. answers says that what this has stands.
func (s *SavedCluster) latest(node string) (best savedStatus, answers, known bool) {
	if own, ok := s.statuses[node]; ok {
		return own, true, true
	}
	var least plan.Peer
	for _, name := range s.Nodes() {
		one := s.statuses[name]
		p, asking := one.observed.Peers[node]
		if p.Responds() {
			p.LastResponse = one.Time
		}
		if asking && (!known || comparePeers(p, least) > 0) {
			best, least, answers, known = one, p, p.Responds(), true
		}
	}
	return best, answers, known
}

// comparePeers is positive if more is known of p than of q.
func comparePeers(p, q plan.Peer) int {
	switch {
	case p.Responds() && !q.Responds():
		return 1
	case q.Responds() && !p.Responds():
		return -1
	}
	return cmp.Or(p.LastResponse.Compare(q.LastResponse), cmp.Compare(p.UnreachableFor, q.UnreachableFor))
}

// Cluster is what is known of the nodes that d declares, at the time of the newest status.
func (s *SavedCluster) Cluster(d plan.Desired) *plan.Cluster {
	c := &plan.Cluster{
		Now: s.now(), Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}, BeingRead: map[plan.CopyRef]bool{},
		Unreachable: map[string]plan.Peer{}, CannotPrepare: map[string]map[disk.ID]string{}, BackedUp: map[plan.CopyRef]bool{},
	}
	for node := range d.Config.Nodes {
		one, answers, known := s.latest(node)
		if known {
			one.addTo(c, d, node)
		}
		if !answers {
			c.Unreachable[node] = one.unreachable(node)
		}
		c.CannotPrepare[node] = s.statuses[node].observed.CannotPrepare
	}
	for ref, seen := range c.Disks {
		for id := range seen.Copies {
			if s.statuses[ref.Node].observed.BackedUp[id] {
				c.BackedUp[plan.CopyRef{Disk: ref, ID: id}] = true
			}
		}
	}
	return c
}

// now is the time of the newest status.
func (s *SavedCluster) now() time.Time {
	var now time.Time
	for _, one := range s.statuses {
		if one.Time.After(now) {
			now = one.Time
		}
	}
	return now
}

// unreachable is a node that did not answer s, or of which s does not tell.
func (s savedStatus) unreachable(node string) plan.Peer {
	p := s.observed.Peers[node]
	if p.Problem == "" {
		p.Problem = "it is in none of the saved states"
	}
	return p
}

// addTo adds what s has of the disks of a node to c. A disk is the one that lay at its
// path, whatever it was called.
func (s savedStatus) addTo(c *plan.Cluster, d plan.Desired, node string) {
	now := map[schema.DiskRef]schema.DiskRef{} // the names of disks, by those that they had
	for name, declared := range d.Config.Nodes[node].Disks {
		for ref, seen := range s.observed.Disks {
			if ref.Node == node && seen.Path == declared.Path {
				now[ref] = schema.DiskRef{Node: node, Disk: name}
			}
		}
	}
	for ref, to := range now {
		c.Disks[to] = s.disk(ref)
	}
	for key := range s.observed.Running {
		if to, ok := now[key.Disk]; ok {
			c.Running[plan.CopyRef{Disk: to, ID: key.ID}] = true
		}
	}
	for key := range s.observed.BeingRead {
		if to, ok := now[key.Disk]; ok {
			c.BeingRead[plan.CopyRef{Disk: to, ID: key.ID}] = true
		}
	}
	for key, t := range s.observed.Failures {
		if to, ok := now[key.Disk]; ok && s.stillApplies(d, key.ID) {
			t.Suspects = renameDisks(t.Suspects, now)
			c.Failures[plan.CopyRef{Disk: to, ID: key.ID}] = t
		}
	}
}

// disk is a disk as its node knows it. What others are not told is as it mostly is.
func (s savedStatus) disk(ref schema.DiskRef) plan.Disk {
	seen := s.observed.Disks[ref]
	seen.Copies = maps.Clone(seen.Copies)
	for id, c := range seen.Copies {
		c.Rejects, c.RejectsForNow = "", false // by another configuration
		c.HasCfg = c.HasCfg || ref.Node != s.Node
		seen.Copies[id] = c
	}
	return seen
}

// stillApplies reports whether what failed about an image still matters: it is declared as it
// was.
func (s savedStatus) stillApplies(d plan.Desired, id disk.ID) bool {
	if image, declared := d.Config.Images[id.Name]; declared && image.ID == id {
		return s.declarations[id] == declaration(image)
	}
	return s.declarations[id] == ""
}

func renameDisks(keys []plan.CopyRef, now map[schema.DiskRef]schema.DiskRef) []plan.CopyRef {
	var out []plan.CopyRef
	for _, key := range keys {
		if to, ok := now[key.Disk]; ok {
			out = append(out, plan.CopyRef{Disk: to, ID: key.ID})
		}
	}
	return out
}

// Unused are the nodes of which there is a status although they are not declared.
func (s *SavedCluster) Unused(d plan.Desired) []string {
	return slices.DeleteFunc(s.Nodes(), func(node string) bool {
		_, declared := d.Config.Nodes[node]
		return declared
	})
}

// maxSavedFile is the size limit of a saved status or plan, which is read into memory.
const maxSavedFile = 256 << 20

// ReadSavedFile decodes a JSON file that this program saved, such as a status or a plan,
// into v. A file that cannot be read is an *fs.PathError.
func ReadSavedFile(file string, v any) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	tooLarge := &fs.PathError{Op: "read", Path: file, Err: fmt.Errorf("it has more than %s", humanize.IBytes(maxSavedFile))}
	if fi, err := f.Stat(); err != nil || fi.Size() > maxSavedFile {
		return cmp.Or[error](err, tooLarge)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSavedFile+1)) // a device has the size 0
	switch {
	case err != nil:
		return err
	case len(text) > maxSavedFile:
		return tooLarge
	}
	err = json.Unmarshal(text, v)
	if _, ok := errors.AsType[*json.SyntaxError](err); ok { // the user named a file of another kind
		return fmt.Errorf("it is not JSON: %w", err)
	}
	return err
}
