// Package serve has what the other nodes see of this one: the state that it publishes (State), and what they can request of it at
// any time (Node).
package serve

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Node is what peers can request of this node at any time, besides its published state: the disks as of the last observation,
// and the withdrawn copies. It implements peer.Node. Its methods may be called concurrently.
type Node struct {
	// Verify queues the verification of the copies of a declared image. It may block until ctx ends.
	Verify func(ctx context.Context, image string)

	disks atomic.Pointer[disks] // nil before the first observation and after Close
	withdrawals
}

// disks are the disks of this node as of one observation. A value does not change.
type disks struct {
	node, config string // config is the digest that is published
	suspects     map[ident.CopyRef]bool
	byName       map[string]openDisk
	images       map[string]schema.Image
}

// openDisk is a disk that was opened. It may be closed at any time: a reader then gets errors,
// and never an empty list.
type openDisk struct {
	handle  system.Disk // nil if it could not be opened
	uuid    string
	problem string
}

var errNotRead = errors.New("the disks were not read yet: retry later")

// Update replaces the disks that peers can read by the disks of this node in o. open has the disks that are open, also those with a problem.
func (n *Node) Update(d plan.Desired, o plan.Observed, open system.Disks) {
	now := &disks{node: d.Node, suspects: plan.Suspects(o.Failures), byName: map[string]openDisk{}, images: d.Config.Images}
	now.config, _ = d.PublishedDigest()
	for ref, seen := range o.Disks {
		if d.Owns(ref) {
			now.byName[ref.Disk] = openDisk{open[ref.Disk], seen.UUID, seen.Problem}
		}
	}
	n.disks.Store(now)
}

// Close ends the service.
func (n *Node) Close() { n.disks.Store(nil) }

// Open returns the open disks, also those with a problem. It fails before the first observation.
func (n *Node) Open() (system.Disks, error) {
	now := n.disks.Load()
	if now == nil {
		return nil, errNotRead
	}
	open := system.Disks{}
	for name, d := range now.byName {
		if d.handle != nil {
			open[name] = d.handle
		}
	}
	return open, nil
}

// withdrawals are the withdrawn copies of this node. Its methods may be called concurrently.
type withdrawals struct {
	mu      sync.Mutex
	keys    map[ident.CopyRef]bool
	watches map[int]map[ident.CopyRef]bool // for each running observation, by number: what is withdrawn at any moment of it
	last    int
}

// Withdraw withdraws a copy of this node (D1).
func (l *withdrawals) Withdraw(key ident.CopyRef) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[ident.CopyRef]bool{}
	}
	l.keys[key] = true
	for _, withdrawn := range l.watches {
		withdrawn[key] = true
	}
}

// watch begins an observation. The returned function ends the observation, and returns the copies
// that were withdrawn at any moment since watch was called.
func (l *withdrawals) watch() (end func() map[ident.CopyRef]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.watches == nil {
		l.watches = map[int]map[ident.CopyRef]bool{}
	}
	l.last++
	number, withdrawn := l.last, map[ident.CopyRef]bool{}
	maps.Copy(withdrawn, l.keys)
	l.watches[number] = withdrawn
	return func() map[ident.CopyRef]bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watches, number)
		return withdrawn
	}
}

// EndWithdrawals ends the withdrawals of the copies for which deleting is false.
func (l *withdrawals) EndWithdrawals(deleting func(ident.CopyRef) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.keys, func(key ident.CopyRef, _ bool) bool { return !deleting(key) })
}

// isWithdrawn reports whether the copy is withdrawn now.
func (l *withdrawals) isWithdrawn(key ident.CopyRef) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keys[key]
}

// Withdrawn returns the copies that are withdrawn now.
func (l *withdrawals) Withdrawn() map[ident.CopyRef]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.keys)
}

// Disk implements peer.Node.
func (n *Node) Disk(name string) (*disk.Disk, bool) {
	now := n.disks.Load()
	if now == nil {
		return nil, false
	}
	d, ok := now.byName[name]
	return system.Folder(d.handle), ok && d.problem == ""
}

// ReportDamage implements peer.Node. For a generation that is not declared it does nothing: no peer
// syncs from such a copy.
func (n *Node) ReportDamage(ctx context.Context, name string) { n.Verify(ctx, name) }

// Leaving implements peer.Node. Before the first observation it is true: nothing may be sent then.
func (n *Node) Leaving(name string, id ident.ID) bool {
	now := n.disks.Load()
	return now == nil || n.isWithdrawn(ident.CopyRef{Disk: ident.DiskRef{Node: now.node, Disk: name}, ID: id})
}

// DeclaredUUID implements peer.Node.
func (n *Node) DeclaredUUID(name string) (string, bool) {
	now := n.disks.Load()
	if now == nil {
		return "", false
	}
	image, ok := now.images[name]
	return image.ID.UUID, ok
}

// Copies implements peer.Node. It observes the copies of one image name, and which of them have the mark with a given name. A
// copy that is withdrawn at any moment of the observation is leaving: a slow listing can outlast a whole
// deletion, and still has its copy. A copy with the mark of any withdrawal is leaving, too: another node that has the same
// folder may delete it without a query to this node. The config digest is from before the observation. So a
// change during the observation makes the response count for less, never for more.
func (n *Node) Copies(_ context.Context, name, mark string) (model.Node, error) {
	endWatch := n.watch()
	now := n.disks.Load()
	if now == nil {
		endWatch()
		return model.Node{}, errNotRead
	}
	state := model.Node{Node: now.node, ConfigDigest: now.config, Mark: mark, Disks: map[string]model.Disk{}}
	seen := plan.Observed{Disks: map[ident.DiskRef]model.Disk{}}
	for on, open := range now.byName {
		seen.Disks[ident.DiskRef{Node: now.node, Disk: on}] = open.list(name, mark)
	}
	leaving := endWatch()
	seen.FindSameCopies()
	for ref, one := range seen.Disks {
		state.Disks[ref.Disk] = one
		for id, c := range one.Copies {
			key := ident.CopyRef{Disk: ref, ID: id}
			c.Leaving = c.Leaving || leaving[key]
			discountSame(&c)
			if secret := c.Mark; secret != "" {
				c.Mark = MarkResponse(secret, now.node)
			}
			if now.suspects[key] {
				c.State, c.Message = model.Unknown, plan.Suspected.Text
			}
			one.Copies[id] = c
		}
	}
	return state, nil
}

// MarkResponse returns how a node shows that it has seen a mark with this secret.
func MarkResponse(secret, node string) string {
	sum := sha256.Sum256([]byte(secret + node))
	return hex.EncodeToString(sum[:16])
}

// list returns the copies of one image name on the disk. If the disk has a problem before or after
// the listing, nothing is known about its copies.
func (d openDisk) list(name, mark string) model.Disk {
	seen := model.Disk{UUID: d.uuid, Problem: d.problem, Copies: model.Copies{}}
	if seen.Problem != "" {
		return seen
	}
	found, err := d.handle.List(name)
	for _, c := range found.Copies {
		using, inUse := found.Users.InUse(c.ID)
		if !inUse {
			using, _ = found.Users.FileOpen(c.ID)
		}
		c.UsedBy = using
		c = c.ForPeers()
		if err == nil && mark != "" {
			c.Mark, err = d.handle.ReadMark(c.ID, mark)
		}
		if err == nil {
			c.Leaving, err = d.handle.Marked(c.ID)
		}
		if c.Leaving {
			c.Message = plan.MarkedText
		}
		seen.Copies[c.ID] = c
	}
	if err == nil {
		// Check fails if the disk was closed or unmounted meanwhile: the list may be too short then.
		err = d.handle.Check()
	}
	if err != nil {
		return model.Disk{UUID: d.uuid, Problem: err.Error()}
	}
	if err := found.Users.Err(); err != nil {
		seen.UsageUnknown = err.Error()
	}
	for id, need := range found.Users.Needs() {
		if id.Name == name {
			c, exists := seen.Copies[id]
			if !exists {
				c = model.Copy{ID: id, State: model.Pending}
			}
			of := system.NeedOf(need)
			c.Need = &model.Need{By: of.By, Since: of.Since}
			seen.Copies[id] = c
		}
	}
	seen.Space = found.Space
	return seen
}
