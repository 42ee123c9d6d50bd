package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Cluster is what is known of the nodes that d declares, at the time of the newest status.
func (s *Snapshot) Cluster(d Desired) *Cluster {
	c := &Cluster{
		Now: s.now(), Disks: map[schema.DiskRef]Disk{}, Tries: map[Key]Try{}, Running: map[Key]bool{}, Read: map[Key]bool{},
		Silent: map[string]Peer{}, Unable: map[string]map[disk.ID]string{}, BackedUp: map[Key]bool{},
	}
	for node := range d.Config.Nodes {
		one, answers, known := s.told(node)
		if known {
			one.tell(c, d, node)
		}
		if !answers {
			c.Silent[node] = one.silent(node)
		}
		c.Unable[node] = s.saved[node].seen.Unable
	}
	for ref, seen := range c.Disks {
		for id := range seen.Copies {
			if s.saved[ref.Node].seen.BackedUp[id] {
				c.BackedUp[Key{ref, id}] = true
			}
		}
	}
	return c
}

// now is the time of the newest status.
func (s *Snapshot) now() time.Time {
	var now time.Time
	for _, one := range s.saved {
		if one.Time.After(now) {
			now = one.Time
		}
	}
	return now
}

// silent is a node that did not answer s, or of which s does not tell.
func (s savedStatus) silent(node string) Peer {
	p := s.seen.Peers[node]
	if p.Problem == "" {
		p.Problem = "it is in none of the saved states"
	}
	return p
}

// tell adds what s has of the disks of a node to c. A disk is the one that lay at its
// path, whatever it was called.
func (s savedStatus) tell(c *Cluster, d Desired, node string) {
	now := map[schema.DiskRef]schema.DiskRef{} // the names of disks, by those that they had
	for name, declared := range d.Config.Nodes[node].Disks {
		for ref, seen := range s.seen.Disks {
			if ref.Node == node && seen.Path == declared.Path {
				now[ref] = schema.DiskRef{Node: node, Disk: name}
			}
		}
	}
	for ref, to := range now {
		c.Disks[to] = s.disk(ref)
	}
	for key := range s.seen.Running {
		if to, ok := now[key.Disk]; ok {
			c.Running[Key{to, key.ID}] = true
		}
	}
	for key := range s.seen.Read {
		if to, ok := now[key.Disk]; ok {
			c.Read[Key{to, key.ID}] = true
		}
	}
	for key, t := range s.seen.Tries {
		if to, ok := now[key.Disk]; ok && s.means(d, key.ID) {
			t.Suspects = renamed(t.Suspects, now)
			c.Tries[Key{to, key.ID}] = t
		}
	}
}

// disk is a disk as its node knows it. What others are not told is as it mostly is.
func (s savedStatus) disk(ref schema.DiskRef) Disk {
	seen := s.seen.Disks[ref]
	seen.Copies = maps.Clone(seen.Copies)
	for id, c := range seen.Copies {
		c.Refuses, c.Later = "", false // by another configuration
		c.HasCfg = c.HasCfg || ref.Node != s.Node
		seen.Copies[id] = c
	}
	return seen
}

// means reports whether what failed about an image still matters: it is declared as it
// was.
func (s savedStatus) means(d Desired, id disk.ID) bool {
	if image, declared := d.Config.Images[id.Name]; declared && image.ID == id {
		return s.declares[id] == declaration(image)
	}
	return s.declares[id] == ""
}

func renamed(keys []Key, now map[schema.DiskRef]schema.DiskRef) []Key {
	var out []Key
	for _, key := range keys {
		if to, ok := now[key.Disk]; ok {
			out = append(out, Key{to, key.ID})
		}
	}
	return out
}

// Unused are the nodes of which there is a status although they are not declared.
func (s *Snapshot) Unused(d Desired) []string {
	return slices.DeleteFunc(s.Nodes(), func(node string) bool {
		_, declared := d.Config.Nodes[node]
		return declared
	})
}
