package simulation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// broke notes that a rule was broken.
func (c *cluster) broke(rule, format string, args ...any) {
	text := rule + ": " + fmt.Sprintf(format, args...)
	c.found = append(c.found, text)
	c.tell("", "%s", text)
}

// removal is what is true of a removal, whatever the node that does it believes.
type removal struct {
	c     *cluster
	node  *node
	work  *work
	key   plan.CopyRef
	began time.Duration
	// reached are the nodes that could be asked at any moment since then, and stood the
	// copies that were ready at such a moment.
	reached map[string]bool
	stood   map[standing]bool
	// heard and answered are the same at the moments of the answers that it got.
	heard    map[string]bool
	answered map[standing]bool
	conf     *declared // by which it was decided
	phase    string
}

// standing is a copy that does not leave, the bytes that it vouches for, and the
// configuration of its node.
type standing struct {
	key            plan.CopyRef
	config, letter string
}

// decision is one to delete a copy, and what it went by. Where two differ on how many
// copies there have to be, and were taken at the same time, the smaller number counts.
type decision struct {
	at   time.Duration
	name string
	conf *declared
}

func (c *cluster) beginRemoval(m *node, w *work) *removal {
	r := &removal{c: c, node: m, work: w, key: w.key, began: c.now, phase: "withdrawn",
		reached: map[string]bool{}, stood: map[standing]bool{}, heard: map[string]bool{}, answered: map[standing]bool{}}
	for _, other := range c.removals {
		if other.key.ID.Name == w.key.ID.Name && other.node != m {
			c.pairs[pairWithdrawals]++
			break
		}
	}
	c.removals = append(c.removals, r)
	return r
}

func (c *cluster) endRemoval(r *removal) {
	c.removals = slices.DeleteFunc(c.removals, func(other *removal) bool { return other == r })
}

// removing returns the removal that is under way of a copy.
func (c *cluster) removing(key plan.CopyRef) *removal {
	for _, r := range c.removals {
		if r.key == key {
			return r
		}
	}
	return nil
}

// sample takes note of what is true everywhere, as long as nothing is decided.
func (r *removal) sample() {
	if r.conf != nil {
		return
	}
	for _, name := range r.c.names {
		if config := r.c.nodes[name].inForce; config == "" {
			r.reached[name] = r.reached[name] || name == r.node.name || r.c.reachable(r.node.name, name)
		} else if name == r.node.name || r.c.reachable(r.node.name, name) {
			r.reached[name] = true
			r.standAll(r.c.nodes[name], r.c.nodes[name].inForce, r.stood)
		}
	}
}

// witness takes note of what is true on a node at the moment when it lists its disks.
func (r *removal) witness(other *node, config string) {
	stood := map[standing]bool{}
	r.standAll(other, "", stood)
	r.answeredBy(other, config, stood)
}

// answeredBy takes note of what was true on a node when it listed its disks for an answer.
func (r *removal) answeredBy(other *node, config string, stood map[standing]bool) {
	r.heard[other.name] = true
	maps.DeleteFunc(r.answered, func(one standing, _ bool) bool { return one.key.Disk.Node == other.name })
	if config == "" {
		return
	}
	for one := range stood {
		one.config = config
		r.answered[one] = true
	}
}

// standAll takes note of the copies that stand on a node with a configuration.
func (r *removal) standAll(on *node, config string, into map[standing]bool) {
	for name := range on.own {
		r.stand(on, schema.DiskRef{Node: on.name, Disk: name}, config, into)
	}
}

func (r *removal) stand(on *node, ref schema.DiskRef, config string, into map[standing]bool) {
	d := r.c.drives[ref]
	if _, own := on.own[ref.Disk]; !own || d == nil || !d.there {
		return
	}
	for id, s := range d.slots {
		key := plan.CopyRef{Disk: ref, ID: id}
		if id.Name == r.key.ID.Name && s.sound() && r.c.removing(key) == nil {
			into[standing{key, config, s.digest}] = true
		}
	}
}

// lose takes note of what is lost by something else than our deletions.
func (c *cluster) lose(key plan.CopyRef, s *slot) {
	if s.sound() {
		c.losses = append(c.losses, loss{c.now, key, s.digest})
	}
}

func (c *cluster) loseAll(ref schema.DiskRef, d *drive) {
	for _, id := range d.ids() {
		c.lose(plan.CopyRef{Disk: ref, ID: id}, d.slots[id])
	}
}
