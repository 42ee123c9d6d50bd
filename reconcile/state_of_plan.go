package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Plan plans for each of these nodes as if it had just taken the configuration that is
// desired of it. All have to be of the same configuration: what is asked is what that
// would do, so every node that answered counts as having it. What concerns an image and
// no disk is in the plan once.
func (s *Snapshot) Plan(nodes []Desired) Plan {
	actions := []Action{}
	if len(nodes) == 0 {
		return Desired{}.newPlan(actions)
	}
	if nodes[0].May == schema.ObserveOnly {
		return nodes[0].newPlan(actions)
	}
	if nodes[0].ranks == nil {
		nodes[0].ranks = newRanks(nodes[0].Config.Nodes, mostKept)
	}
	all := s.all(nodes[0])
	shown := s.shown(nodes[0], all)
	h := newShare(nodes[0], shown)
	h.begun(all)
	everyone := nodes[0]
	everyone.Node = ""
	h.wanted(everyone, s.observed(everyone, all, shown))
	for _, d := range nodes {
		d.ranks = nodes[0].ranks
		o := s.observed(d, all, shown)
		images := h.images(d, d.Node == nodes[0].Node || !s.whole(d, all))
		actions = append(actions, d.newPlan(h.scene(d, o, images).plan(slices.Values(images))).Actions...)
	}
	p := nodes[0].newPlan(once(actions))
	p.Suspended = nodes[0].suspensions(s.now())
	return p
}

// all is what is known of all nodes, each as it knows itself.
func (s *Snapshot) all(d Desired) Observed {
	o := Observed{Now: s.now(), Disks: map[schema.DiskRef]Disk{}, Tries: map[Key]Try{}, Running: map[Key]bool{}, Read: map[Key]bool{}}
	for node := range d.Config.Nodes {
		if one, _, known := s.told(node); known {
			one.tell(o, d, node)
		}
	}
	return o
}

// shown are the disks as the nodes would show them to the others: with the copies that
// they take not.
func (s *Snapshot) shown(d Desired, all Observed) map[schema.DiskRef]Disk {
	shown := maps.Clone(all.Disks)
	for ref, seen := range shown {
		seen.Copies = maps.Clone(seen.Copies)
		shown[ref] = seen
	}
	h := newShare(d, all.Disks)
	for node := range d.Config.Nodes {
		if _, answers, _ := s.told(node); !answers {
			continue
		}
		d.Node, d.Picked = node, nil
		o := s.observed(d, all, all.Disks)
		images := h.refusing(d, o)
		for key, r := range h.scene(d, o, images).refusals(slices.Values(images)) {
			shown[key.Disk].refuse(key.ID, r)
		}
	}
	return shown
}

// observed is what the node of d would see: its own disks, and what others show.
func (s *Snapshot) observed(d Desired, all Observed, shown map[schema.DiskRef]Disk) Observed {
	o := all
	o.Disks, o.Peers, o.Unable = maps.Clone(shown), map[string]Peer{}, s.saved[d.Node].seen.Unable
	o.BackedUp = s.saved[d.Node].seen.BackedUp
	for node := range d.Config.Nodes {
		if node != d.Node {
			one, answers, known := s.told(node)
			o.Peers[node] = one.peer(node, answers, known, d.Digest)
		}
	}
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := schema.DiskRef{Node: d.Node, Disk: name}
		if seen, known := all.Disks[ref]; known {
			o.Disks[ref] = seen
		}
	}
	o.refuseClones()
	return o
}

// whole reports whether the node answers and tells of all its disks: then it sees nothing
// of them that it does not show.
func (s *Snapshot) whole(d Desired, all Observed) bool {
	_, answers, _ := s.told(d.Node)
	for name := range d.Config.Nodes[d.Node].Disks {
		_, known := all.Disks[schema.DiskRef{Node: d.Node, Disk: name}]
		answers = answers && known
	}
	return answers
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

func (s savedStatus) peer(node string, answers, known bool, config string) Peer {
	if answers {
		return Peer{Asked: true, Config: config, Last: s.Time}
	}
	p := s.seen.Peers[node]
	p.Asked = true
	if !known || p.Problem == "" {
		p.Problem = "it is in none of the saved states"
	}
	return p
}

// tell adds what s has of the disks of a node to o. A disk is the one that lay at its
// path, whatever it was called.
func (s savedStatus) tell(o Observed, d Desired, node string) {
	now := map[schema.DiskRef]schema.DiskRef{} // the names of disks, by those that they had
	for name, declared := range d.Config.Nodes[node].Disks {
		for ref, seen := range s.seen.Disks {
			if ref.Node == node && seen.Path == declared.Path {
				now[ref] = schema.DiskRef{Node: node, Disk: name}
			}
		}
	}
	for ref, to := range now {
		o.Disks[to] = s.disk(ref)
	}
	for key := range s.seen.Running {
		if to, ok := now[key.Disk]; ok {
			o.Running[Key{to, key.ID}] = true
		}
	}
	for key := range s.seen.Read {
		if to, ok := now[key.Disk]; ok {
			o.Read[Key{to, key.ID}] = true
		}
	}
	for key, t := range s.seen.Tries {
		if to, ok := now[key.Disk]; ok && s.means(d, key.ID) {
			t.Suspects = renamed(t.Suspects, now)
			o.Tries[Key{to, key.ID}] = t
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

// refuse notes that the disk takes no copy, in place of one if it has none.
func (d Disk) refuse(id disk.ID, r refusal) {
	c, there := d.Copies[id]
	if !there {
		c = Copy{Copy: disk.Copy{ID: id, State: disk.Pending}}
	}
	c.Refuses, c.Later = r.why, r.later
	d.Copies[id] = c
}

// Problems says of the disks of these nodes what is wrong with them, and which are not
// known, by disk.
func (s *Snapshot) Problems(nodes []Desired) map[schema.DiskRef]string {
	problems := map[schema.DiskRef]string{}
	if len(nodes) == 0 {
		return problems
	}
	all := s.all(nodes[0])
	for _, d := range nodes {
		for name, declared := range d.Config.Nodes[d.Node].Disks {
			ref := schema.DiskRef{Node: d.Node, Disk: name}
			seen, known := all.Disks[ref]
			switch {
			case !known:
				problems[ref] = "none of the states tells of a disk at " + declared.Path
			case seen.Problem != "":
				problems[ref] = seen.Problem
			}
		}
	}
	return problems
}

// Unused are the nodes of which there is a status although they are not declared.
func (s *Snapshot) Unused(d Desired) []string {
	return slices.DeleteFunc(s.Nodes(), func(node string) bool {
		_, declared := d.Config.Nodes[node]
		return declared
	})
}
