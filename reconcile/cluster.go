package reconcile

import (
	"maps"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Cluster is all nodes of one configuration at one moment, each as it knows itself,
// which none of them sees. Nothing is under way in it.
type Cluster struct {
	Now time.Time
	// Disks are the declared ones, as their own nodes see them.
	Disks map[schema.DiskRef]Disk
	Tries map[Key]Try
	// Silent are the nodes that answer nobody, and for how long they have not.
	Silent map[string]time.Duration
	// Unable are, by node, the images that it cannot make the first copy of, and why.
	Unable map[string]map[disk.ID]string
	// BackedUp are the copies of which a whole backup was seen.
	BackedUp map[Key]bool

	shown map[schema.DiskRef]Disk // as the nodes show them to the others; nil: nobody asked yet
}

// Seen returns what each of these nodes sees: its own disks, and of the others what
// they show, or showed before they fell silent. All have to be of the same
// configuration, at each call. The values share memory with c and with each other.
func (c *Cluster) Seen(nodes []Desired) []Observed {
	if c.shown == nil && len(nodes) > 0 {
		c.showAll(nodes[0])
	}
	seen := make([]Observed, len(nodes))
	for i, d := range nodes {
		seen[i] = c.seen(d, c.shown)
	}
	return seen
}

// showAll has every node show its disks.
func (c *Cluster) showAll(d Desired) {
	c.shown = make(map[schema.DiskRef]Disk, len(c.Disks))
	var all []Desired
	for node := range d.Config.Nodes {
		d.Node, d.Picked = node, nil
		all = append(all, d)
	}
	refused := make([]map[Key]refusal, len(all))
	each(len(all), func(i int) { refused[i] = c.refused(all[i]) })
	for i, d := range all {
		c.show(d, refused[i])
	}
}

// Show has the node of d show its disks anew, which have changed since the others saw
// them.
func (c *Cluster) Show(d Desired) {
	if c.shown != nil {
		c.show(d, c.refused(d))
	}
}

// refused are the copies that a node takes not. One that is silent does not say.
func (c *Cluster) refused(d Desired) map[Key]refusal {
	if _, silent := c.Silent[d.Node]; silent {
		return nil
	}
	return d.refusals(c.seen(d, c.Disks))
}

func (c *Cluster) show(d Desired, refused map[Key]refusal) {
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := schema.DiskRef{Node: d.Node, Disk: name}
		if one, known := c.Disks[ref]; known {
			one.Copies = maps.Clone(one.Copies)
			c.shown[ref] = one
		}
	}
	for key, r := range refused {
		if c.shown[key.Disk].Copies != nil {
			c.shown[key.Disk].refuse(key.ID, r)
		}
	}
}

// each calls f for 0 to n-1, several at a time.
func each(n int, f func(i int)) {
	var all errgroup.Group
	all.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		all.Go(func() error {
			f(i)
			return nil
		})
	}
	_ = all.Wait() // f has no error
}

func (c *Cluster) seen(d Desired, shown map[schema.DiskRef]Disk) Observed {
	o := Observed{
		Now: c.Now, Disks: maps.Clone(shown), Tries: c.Tries, Peers: map[string]Peer{},
		Running: map[Key]bool{}, Read: map[Key]bool{}, Unable: c.Unable[d.Node], BackedUp: map[disk.ID]bool{},
	}
	for node := range d.Config.Nodes {
		if node != d.Node {
			o.Peers[node] = c.peer(node, d.Digest)
		}
	}
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := schema.DiskRef{Node: d.Node, Disk: name}
		if own, known := c.Disks[ref]; known {
			o.Disks[ref] = own
		}
	}
	for key := range c.BackedUp {
		if key.Disk.Node == d.Node {
			o.BackedUp[key.ID] = true
		}
	}
	o.refuseClones()
	return o
}

func (c *Cluster) peer(node, config string) Peer {
	silent, is := c.Silent[node]
	if is {
		return Peer{Asked: true, Problem: "it is down", Silent: silent}
	}
	return Peer{Asked: true, Config: config, Last: c.Now}
}

// Plan is what these nodes would do now. All have to be of the same configuration. What
// concerns an image and no disk is in it once.
func (c *Cluster) Plan(nodes []Desired) Plan {
	if len(nodes) == 0 {
		return Desired{}.newPlan([]Action{})
	}
	seen, planned := c.Seen(nodes), make([][]Action, len(nodes))
	each(len(nodes), func(i int) { planned[i] = nodes[i].Plan(seen[i]).Actions })
	return nodes[0].newPlan(once(slices.Concat(planned...)))
}

// once leaves out what several nodes say of an image and of no disk.
func once(actions []Action) []Action {
	type matter struct {
		id   disk.ID
		kind Kind
	}
	told := map[matter]bool{}
	return slices.DeleteFunc(actions, func(a Action) bool {
		about := matter{a.Key().ID, a.Kind}
		again := a.Disk == "" && told[about]
		told[about] = told[about] || a.Disk == ""
		return again
	})
}

// Forget drops what failed under a declaration that is not the same any more.
func (c *Cluster) Forget(before, now schema.Config) {
	maps.DeleteFunc(c.Tries, func(key Key, t Try) bool {
		was, is := before.Images[key.ID.Name], now.Images[key.ID.Name]
		return !sameImage(was, is) || t.Kind == Backup && !sameBackup(was, is)
	})
}

// Cluster is what is known of the nodes that d declares. What was under way is not any
// more.
func (s *Snapshot) Cluster(d Desired) *Cluster {
	all := s.all(d)
	c := &Cluster{
		Now: all.Now, Disks: all.Disks, Tries: all.Tries,
		Silent: map[string]time.Duration{}, Unable: map[string]map[disk.ID]string{}, BackedUp: map[Key]bool{},
	}
	for node := range d.Config.Nodes {
		one, answers, known := s.told(node)
		if known && !answers {
			c.Silent[node] = one.peer(node, answers, known, "").Silent
		}
		own := s.saved[node].seen
		c.Unable[node] = own.Unable
		for ref, seen := range c.Disks {
			for id := range seen.Copies {
				if ref.Node == node && own.BackedUp[id] {
					c.BackedUp[Key{ref, id}] = true
				}
			}
		}
	}
	return c
}

// Place is what placement says of one declared disk about an image.
type Place struct {
	Disk schema.DiskRef
	Rank int // 1 is the best; 0: none
	// Why no copy is wanted there; "" where one is.
	Why string
}

// Places tells of every declared disk how it ranks for a declared image, and why it is
// passed over, if it is: those with a rank first.
func (d Desired) Places(o Observed, image string) []Place {
	v := d.scene(o).look(d.Config.Images[image])
	passed := v.passedOver()
	places := make([]Place, 0, v.places.ranked.len())
	for i := range v.places.ranked.len() {
		ref := v.places.ranked.at(i)
		places = append(places, Place{ref, i + 1, passed[ref]})
	}
	var others []Place
	for node, declared := range d.Config.Nodes {
		for name := range declared.Disks {
			if ref := (schema.DiskRef{Node: node, Disk: name}); !v.places.ranked.has(ref) {
				others = append(others, Place{ref, 0, passed[ref]})
			}
		}
	}
	slices.SortFunc(others, func(a, b Place) int { return compareRefs(a.Disk, b.Disk) })
	return append(places, others...)
}
