package simulation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// violation notes that a rule was broken.
func (c *cluster) violation(rule, format string, args ...any) {
	text := rule + ": " + fmt.Sprintf(format, args...)
	c.violations = append(c.violations, text)
	c.logf("", "%s", text)
}

// deletion is what is true of a removal, whatever the node that does it believes.
type deletion struct {
	c     *cluster
	node  *node
	work  *runningJob
	key   plan.CopyRef
	began time.Duration
	// reachable are the nodes that could be asked at any moment since then, and stood the
	// copies that were ready at such a moment.
	reachable   map[string]bool
	readyDuring map[readyCopy]bool
	// responded and answered are the same at the moments of the answers that it got.
	responded       map[string]bool
	readyAtResponse map[readyCopy]bool
	conf            *declaration // by which it was decided
	phase           string
}

// readyCopy is a copy that does not leave, the bytes that it vouches for, and the
// configuration of its node.
type readyCopy struct {
	key            plan.CopyRef
	config, letter string
}

// decision is one to delete a copy, and what it went by. Where two differ on how many
// copies there have to be, and were taken at the same time, the smaller number counts.
type decision struct {
	at   time.Duration
	name string
	conf *declaration
}

func (c *cluster) beginDeletion(m *node, w *runningJob) *deletion {
	r := &deletion{c: c, node: m, work: w, key: w.key, began: c.now, phase: "withdrawn",
		reachable: map[string]bool{}, readyDuring: map[readyCopy]bool{}, responded: map[string]bool{}, readyAtResponse: map[readyCopy]bool{}}
	if c.withdrawnByTwo(r) {
		c.pairs[pairWithdrawals]++
	}
	c.deletions = append(c.deletions, r)
	return r
}

func (c *cluster) endDeletion(r *deletion) {
	c.deletions = slices.DeleteFunc(c.deletions, func(other *deletion) bool { return other == r })
}

// deletionOf returns the removal that is under way of a copy.
func (c *cluster) deletionOf(key plan.CopyRef) *deletion {
	for _, r := range c.deletions {
		if r.key == key {
			return r
		}
	}
	return nil
}

// sample takes note of what is true everywhere, as long as nothing is decided.
func (r *deletion) sample() {
	if r.conf != nil {
		return
	}
	for _, name := range r.c.names {
		if config := r.c.nodes[name].observedDigest; config == "" {
			r.reachable[name] = r.reachable[name] || name == r.node.name || r.c.reachable(r.node.name, name)
		} else if name == r.node.name || r.c.reachable(r.node.name, name) {
			r.reachable[name] = true
			r.addReadyOn(r.c.nodes[name], r.c.nodes[name].observedDigest, r.readyDuring)
		}
	}
}

// recordListing takes note of what is true on a node at the moment when it lists its disks.
func (r *deletion) recordListing(other *node, config string) {
	stood := map[readyCopy]bool{}
	r.addReadyOn(other, "", stood)
	r.recordResponse(other, config, stood)
}

// recordResponse takes note of what was true on a node when it listed its disks for an answer.
func (r *deletion) recordResponse(other *node, config string, stood map[readyCopy]bool) {
	r.responded[other.name] = true
	maps.DeleteFunc(r.readyAtResponse, func(one readyCopy, _ bool) bool { return one.key.Disk.Node == other.name })
	if config == "" {
		return
	}
	for one := range stood {
		one.config = config
		r.readyAtResponse[one] = true
	}
}

// addReadyOn takes note of the copies that stand on a node with a configuration.
func (r *deletion) addReadyOn(on *node, config string, into map[readyCopy]bool) {
	for name := range on.ownDisks {
		r.addReady(on, schema.DiskRef{Node: on.name, Disk: name}, config, into)
	}
}

func (r *deletion) addReady(on *node, ref schema.DiskRef, config string, into map[readyCopy]bool) {
	d := r.c.disks[ref]
	if _, own := on.ownDisks[ref.Disk]; !own || d == nil || !d.Attached {
		return
	}
	for id, s := range d.Copies {
		key := plan.CopyRef{Disk: ref, ID: id}
		if id.Name == r.key.ID.Name && s.Ready() && r.c.deletionOf(key) == nil {
			into[readyCopy{key, config, s.Recorded}] = true
		}
	}
}

// recordLoss takes note of what is lost by something else than our deletions.
func (c *cluster) recordLoss(key plan.CopyRef, s *Copy) {
	if s.Ready() {
		c.losses = append(c.losses, loss{c.now, key, s.Recorded})
	}
}

func (c *cluster) recordLosses(ref schema.DiskRef, d *Disk) {
	for _, id := range d.IDs() {
		c.recordLoss(plan.CopyRef{Disk: ref, ID: id}, d.Copies[id])
	}
}
