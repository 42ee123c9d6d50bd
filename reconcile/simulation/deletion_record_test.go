package simulation

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// violation records that a rule was broken, which ends the run.
func (c *cluster) violation(rule, format string, args ...any) {
	text := rule + ": " + fmt.Sprintf(format, args...)
	c.violations = append(c.violations, text)
	c.logf("", "%s", text)
}

// deletion records the facts about one deletion of a copy, from its withdrawal on. The rules use
// these facts, and not what the deleting node observed.
type deletion struct {
	c     *cluster
	node  *node
	work  *runningJob
	key   ident.CopyRef
	began time.Duration
	// reachable are the nodes that could have responded at some moment since began, and readyDuring
	// the copies on them that were ready at such a moment.
	reachable   map[string]bool
	readyDuring map[readyCopy]bool
	// responded and readyAtResponse are the same, but only at the moments of the responses.
	responded       map[string]bool
	readyAtResponse map[readyCopy]bool
	// proven are the copies that have sent the right chunk.
	proven map[ident.CopyRef]bool
	// relayed are the contents of which a compromised node has sent the right chunk as the proof of one
	// of its copies: it has read the chunk from a copy on another node.
	relayed map[readyCopy]bool
	// deceived: a compromised node has responded.
	deceived bool
	// needs are the disks with replicas that have needed the generation at every moment since began, and unlimited the generations
	// that were in use or needed then, so that the prune limit does not count them.
	needs     map[ident.DiskRef]bool
	unlimited map[ident.ID]bool
	conf      *declaration // the configuration of the decision; nil before it
	phase     string
}

// readyCopy is a ready copy that is not leaving, with its recorded content and the config digest of
// its node.
type readyCopy struct {
	key             ident.CopyRef
	config, content string
}

// decision is a decision to delete a copy. If two nodes decide at the same time under configurations
// with different numbers of copies, checkUnlink uses the smaller number. If one of them counts on a claim of
// a compromised node (deletion.relayed), checkUnlink counts the claim for both: the other node may have counted
// on the copy that the first one deletes.
type decision struct {
	at      time.Duration
	name    string
	conf    *declaration
	relayed map[readyCopy]bool
}

func (c *cluster) beginDeletion(m *node, w *runningJob) *deletion {
	r := &deletion{c: c, node: m, work: w, key: w.key, began: c.now, phase: "withdrawn",
		reachable: map[string]bool{}, readyDuring: map[readyCopy]bool{}, responded: map[string]bool{}, readyAtResponse: map[readyCopy]bool{}, proven: map[ident.CopyRef]bool{}, relayed: map[readyCopy]bool{}}
	r.needs, r.unlimited = c.needing(w.key), c.keptByUse()
	if c.withdrawnByTwo(r) {
		c.pairs[pairWithdrawals]++
	}
	c.deletions = append(c.deletions, r)
	return r
}

func (c *cluster) endDeletion(r *deletion) {
	c.deletions = slices.DeleteFunc(c.deletions, func(other *deletion) bool { return other == r })
}

// deletionOf returns the running deletion of a copy, nil if there is none.
func (c *cluster) deletionOf(key ident.CopyRef) *deletion {
	for _, r := range c.deletions {
		if r.key == key {
			return r
		}
	}
	return nil
}

// sample records the ready copies of all reachable nodes. It runs after each event until the decision.
func (r *deletion) sample() {
	if r.conf != nil {
		return
	}
	now := r.c.needing(r.key)
	maps.DeleteFunc(r.needs, func(ref ident.DiskRef, _ bool) bool { return !now[ref] })
	for _, name := range r.c.names {
		if config := r.c.nodes[name].observedDigest; config == "" {
			r.reachable[name] = r.reachable[name] || name == r.node.name || r.c.reachable(r.node.name, name)
		} else if name == r.node.name || r.c.reachable(r.node.name, name) {
			r.reachable[name] = true
			r.addReadyOn(r.c.nodes[name], r.c.nodes[name].observedDigest, r.readyDuring)
		}
	}
}

// recordListing records the ready copies of a node at the moment when it lists its disks.
func (r *deletion) recordListing(other *node, config string) {
	ready := map[readyCopy]bool{}
	r.addReadyOn(other, "", ready)
	r.recordResponse(other, config, ready)
}

// recordResponse records which copies were ready when a node listed its disks for a response. A
// newer response replaces an older one.
func (r *deletion) recordResponse(other *node, config string, ready map[readyCopy]bool) {
	r.responded[other.name] = true
	maps.DeleteFunc(r.readyAtResponse, func(one readyCopy, _ bool) bool { return one.key.Disk.Node == other.name })
	if config == "" {
		return
	}
	for one := range ready {
		one.config = config
		r.readyAtResponse[one] = true
	}
}

// recordProof records that a copy has sent the right chunk. A copy that is about to be deleted must not.
func (r *deletion) recordProof(key ident.CopyRef) {
	if r.c.deletionOf(key) != nil && !*clusterWorld {
		r.c.violation("H3", "%s sends a chunk as a proof, although it was withdrawn", key)
	}
	r.proven[key] = true
}

// losesNothing reports whether the deletion removes a partial file after a compromised node has responded.
// Such a deletion needs no proofs, so the claims of that node may count.
func (r *deletion) losesNothing(s *Copy) bool { return r.deceived && s.File == "" }

// recordClaim records that a compromised node has sent the right chunk: it has made up the content, or has
// relayed the chunk from a copy that nobody has withdrawn. So it counts like a ready copy (docs/security.md,
// what is not protected), but not as the last one: see checkUnlink.
func (r *deletion) recordClaim(key ident.CopyRef, content, config string) {
	one := readyCopy{key, config, content}
	r.relayed[one], r.proven[key] = true, true
	r.readyDuring[one], r.readyAtResponse[one] = true, true
}

// addReadyOn adds the ready copies on all disks of a node to a set.
func (r *deletion) addReadyOn(on *node, config string, into map[readyCopy]bool) {
	for name := range on.ownDisks {
		r.addReady(on, ident.DiskRef{Node: on.name, Disk: name}, config, into)
	}
}

func (r *deletion) addReady(on *node, ref ident.DiskRef, config string, into map[readyCopy]bool) {
	d := r.c.disks[ref]
	if _, own := on.ownDisks[ref.Disk]; !own || d == nil || !d.Attached {
		return
	}
	for id, s := range d.Copies {
		key := ident.CopyRef{Disk: ref, ID: id}
		if id.Name == r.key.ID.Name && s.Ready() && r.c.deletionOf(key) == nil {
			into[readyCopy{key, config, s.Recorded}] = true
		}
	}
}

// recordLoss records that a fault, and no deletion, destroys a ready copy.
func (c *cluster) recordLoss(key ident.CopyRef, s *Copy) {
	if s.Ready() {
		c.losses = append(c.losses, loss{c.now, key, s.Recorded})
	}
}

func (c *cluster) recordLosses(ref ident.DiskRef, d *Disk) {
	for _, id := range d.IDs() {
		c.recordLoss(ident.CopyRef{Disk: ref, ID: id}, d.Copies[id])
	}
}
