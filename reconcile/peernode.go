package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// served is what peers can read at any time: the disks as of the last observation, and the
// withdrawn copies. Its methods may be called concurrently.
type served struct {
	disks   atomic.Pointer[servedDisks] // nil before the first observation and after close
	leaving leavingCopies
}

// servedDisks are the disks of this node as of one observation. A value does not change.
type servedDisks struct {
	node, config string // config is the digest that is published
	suspects     map[ident.CopyRef]bool
	byName       map[string]servedDisk
	images       map[string]schema.Image
}

// servedDisk is a disk that was opened. It may be closed at any time: a reader then gets errors,
// and never an empty list.
type servedDisk struct {
	handle  Disk // nil if it could not be opened
	uuid    string
	problem string
}

var errNotRead = errors.New("the disks were not read yet: retry later")

// update replaces the disks that peers can read.
func (s *served) update(d plan.Desired, o plan.Observed, open map[ident.DiskRef]*openDisk) {
	now := &servedDisks{node: d.Node, suspects: plan.Suspects(o.Failures), byName: map[string]servedDisk{}, images: d.Config.Images}
	now.config, _ = d.PublishedDigest()
	for ref, one := range open {
		now.byName[ref.Disk] = servedDisk{one.handle, o.Disks[ref].UUID, o.Disks[ref].Problem}
	}
	s.disks.Store(now)
}

// close ends the service.
func (s *served) close() { s.disks.Store(nil) }

// disk returns a disk that can be read.
func (s *served) disk(name string) (Disk, bool) {
	now := s.disks.Load()
	if now == nil {
		return nil, false
	}
	one, ok := now.byName[name]
	return one.handle, ok && one.problem == ""
}

// handle returns the open disk with this name, also if it has a problem; nil if it is not open.
func (s *served) handle(name string) Disk {
	if now := s.disks.Load(); now != nil {
		return now.byName[name].handle
	}
	return nil
}

// leavingCopies are the withdrawn copies of this node. Its methods may be called concurrently.
type leavingCopies struct {
	mu      sync.Mutex
	keys    map[ident.CopyRef]bool
	watches map[*leavingWatch]bool
}

// leavingWatch collects the copies that are withdrawn at any moment of an observation.
type leavingWatch struct{ keys map[ident.CopyRef]bool }

func (l *leavingCopies) add(key ident.CopyRef) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[ident.CopyRef]bool{}
	}
	l.keys[key] = true
	for w := range l.watches {
		w.keys[key] = true
	}
}

// watch begins an observation. The returned function ends it, and returns the copies that were
// withdrawn at any moment since watch was called.
func (l *leavingCopies) watch() (end func() map[ident.CopyRef]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &leavingWatch{keys: map[ident.CopyRef]bool{}}
	maps.Copy(w.keys, l.keys)
	if l.watches == nil {
		l.watches = map[*leavingWatch]bool{}
	}
	l.watches[w] = true
	return func() map[ident.CopyRef]bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watches, w)
		return w.keys
	}
}

// keep ends all withdrawals except those for which deleting is true.
func (l *leavingCopies) keep(deleting func(ident.CopyRef) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.keys, func(key ident.CopyRef, _ bool) bool { return !deleting(key) })
}

// has reports whether the copy is withdrawn now.
func (l *leavingCopies) has(key ident.CopyRef) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.keys[key]
}

// all returns the copies that are withdrawn now.
func (l *leavingCopies) all() map[ident.CopyRef]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.keys)
}

// peerNode is this node as its peers see it, besides its published state. It implements
// peer.Node.
type peerNode struct {
	served *served
	loop   *Loop // queues verifications; nil only in tests
}

// PeerNode returns what peers can request of this node, besides its published state.
func (l *Loop) PeerNode() peer.Node { return peerNode{&l.reconciler.served, l} }

// Disk implements peer.Node.
func (n peerNode) Disk(name string) (*disk.Disk, bool) {
	d, ok := n.served.disk(name)
	return folderOf(d), ok
}

// ReportDamage queues the verification of the copies of an image. It does nothing for a
// generation that is not declared: no peer syncs from such a copy.
func (n peerNode) ReportDamage(ctx context.Context, name string) { _, _ = n.loop.Verify(ctx, name) }

// Leaving implements peer.Node. Before the first observation it is true: nothing may be sent then.
func (n peerNode) Leaving(name string, id ident.ID) bool {
	now := n.served.disks.Load()
	return now == nil || n.served.leaving.has(ident.CopyRef{Disk: ident.DiskRef{Node: now.node, Disk: name}, ID: id})
}

// DeclaredUUID implements peer.Node.
func (n peerNode) DeclaredUUID(name string) (string, bool) {
	now := n.served.disks.Load()
	if now == nil {
		return "", false
	}
	image, ok := now.images[name]
	return image.ID.UUID, ok
}

// Copies implements peer.Node.
func (n peerNode) Copies(_ context.Context, name, mark string) (model.Node, error) {
	return n.served.copies(name, mark)
}

// Copies returns the copies of one image name on the disks of this node, as PeerNode does for a
// direct query. It may be called concurrently.
func (r *Reconciler) Copies(name, mark string) (model.Node, error) {
	return r.served.copies(name, mark)
}

// copies observes the copies of one image name, and which of them have the mark with a name. A copy
// that is withdrawn at any moment of the observation is leaving: a slow listing can outlast a whole
// deletion, whose copy it still has. The config digest is the one from before the observation. So a
// change during the observation makes the response count for less, never for more.
func (s *served) copies(name, mark string) (model.Node, error) {
	endWatch := s.leaving.watch()
	now := s.disks.Load()
	if now == nil {
		endWatch()
		return model.Node{}, errNotRead
	}
	state := model.Node{Node: now.node, ConfigDigest: now.config, Mark: mark, Disks: map[string]model.Disk{}}
	for on, open := range now.byName {
		state.Disks[on] = open.list(name, mark)
	}
	leaving := endWatch()
	first := map[model.FolderID]ident.DiskRef{} // as plan.Observed.MarkSameCopies
	for _, on := range slices.Sorted(maps.Keys(state.Disks)) {
		for id, c := range state.Disks[on].Copies {
			key := ident.CopyRef{Disk: ident.DiskRef{Node: now.node, Disk: on}, ID: id}
			c.Leaving = leaving[key]
			if other, shared := first[c.Folder]; shared {
				markSame(&c, other)
			} else if c.Folder != (model.FolderID{}) {
				first[c.Folder] = key.Disk
			}
			if secret := c.Mark; secret != "" {
				c.Mark = responseFor(secret, now.node)
			}
			if now.suspects[key] {
				c.State, c.Message = model.Unknown, plan.Suspected.Text
			}
			state.Disks[on].Copies[id] = c
		}
	}
	return state, nil
}

// list returns the copies of one image name on the disk. If the disk has a problem before or after
// the listing, nothing is known about its copies.
func (d servedDisk) list(name, mark string) model.Disk {
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
		seen.Copies[c.ID] = c
	}
	if err == nil {
		// It fails if the disk was closed or unmounted meanwhile: the list may be too short then.
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
			addNeed(seen.Copies, id, needOf(need))
		}
	}
	seen.Space = found.Space
	return seen
}

// addNeed adds the need of replicas on a disk to its copies.
func addNeed(copies model.Copies, id ident.ID, need model.Need) {
	c, exists := copies[id]
	if !exists {
		c = model.Copy{ID: id, State: model.Pending}
	}
	c.Need = &model.Need{By: need.By, Since: need.Since}
	copies[id] = c
}
