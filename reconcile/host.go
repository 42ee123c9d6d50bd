package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// servedDisks is what peers can read at any time, as of the last observation. It is not changed.
type servedDisks struct {
	node, config string
	suspect      map[plan.CopyRef]bool
	disks        map[string]servedDisk
	images       map[string]schema.Image
}

// servedDisk is a disk that was opened. It may be closed at any time: a reader then gets errors,
// and never an empty list.
type servedDisk struct {
	Disk
	uuid    string
	problem string
}

var errNotRead = errors.New("the disks were not read yet: retry later")

// PeerNode returns what peers can request of this node, besides its published state.
func (l *Loop) PeerNode() peer.Node { return peerNode{l.reconciler, l} }

// peerNode is this node as its peers see it: it implements peer.Node.
type peerNode struct {
	r    *Reconciler
	loop *Loop
}

// Disk returns a disk of this node that can be read.
func (n peerNode) Disk(name string) (*disk.Disk, bool) {
	d, ok := n.r.readable(name)
	return folderOf(d), ok
}

// ReportDamage queues the verification of the copies of an image. It does nothing for a
// generation that is not declared: no peer syncs from that.
func (n peerNode) ReportDamage(ctx context.Context, name string) { _, _ = n.loop.Verify(ctx, name) }

// serve lets peers read the disks that were observed.
func (r *Reconciler) serve(d plan.Desired, o plan.Observed) {
	now := &servedDisks{node: d.Node, config: d.PublishedDigest(), suspect: plan.Suspects(o.Failures), disks: map[string]servedDisk{}, images: d.Config.Images}
	for ref, one := range r.disks.open {
		now.disks[ref.Disk] = servedDisk{one.Disk, o.Disks[ref].UUID, o.Disks[ref].Problem}
	}
	r.served.Store(now)
}

// readable returns a disk of this node that can be read.
func (r *Reconciler) readable(name string) (Disk, bool) {
	now := r.served.Load()
	if now == nil {
		return nil, false
	}
	one, ok := now.disks[name]
	return one.Disk, ok && one.problem == ""
}

// Leaving reports whether a copy on a disk of this node is withdrawn. Before the first
// observation it is true: nothing may be sent then.
func (n peerNode) Leaving(name string, id disk.ID) bool {
	now := n.r.served.Load()
	return now == nil || n.r.leaving.all()[plan.CopyRef{Disk: schema.DiskRef{Node: now.node, Disk: name}, ID: id}]
}

// DeclaredUUID returns the uuid of the declared generation of an image.
func (n peerNode) DeclaredUUID(name string) (string, bool) {
	now := n.r.served.Load()
	if now == nil {
		return "", false
	}
	image, ok := now.images[name]
	return image.ID.UUID, ok
}

// Copies observes the copies of one image name on the disks of this node. A copy that is
// withdrawn before or after the observation is leaving, and the config digest is the one
// from before it: what changes meanwhile makes the response count for less, never for more.
func (n peerNode) Copies(_ context.Context, name string) (peer.State, error) {
	before := n.r.leaving.all()
	now := n.r.served.Load()
	if now == nil {
		return peer.State{}, errNotRead
	}
	s := peer.State{Node: now.node, Config: now.config}
	for _, on := range slices.Sorted(maps.Keys(now.disks)) {
		s.Disks = append(s.Disks, now.disks[on].list(on, name))
	}
	after := n.r.leaving.all()
	for _, one := range s.Disks {
		for i := range one.Copies {
			key := plan.CopyRef{Disk: schema.DiskRef{Node: now.node, Disk: one.Name}, ID: one.Copies[i].ID}
			one.Copies[i].Leaving = before[key] || after[key]
			if now.suspect[key] {
				one.Copies[i].State, one.Copies[i].Message = disk.Unknown, plan.Suspected.Text
			}
		}
	}
	return s, nil
}

// list returns the copies of one image name on the disk. If anything is wrong with the disk,
// before or after the listing, nothing is known about its copies.
func (d servedDisk) list(on, name string) peer.Disk {
	seen := peer.Disk{Name: on, UUID: d.uuid, Problem: d.problem, Copies: []peer.Copy{}}
	if seen.Problem != "" {
		return seen
	}
	found, err := d.List(name)
	for _, c := range found.Copies {
		using, inUse := found.Users.InUse(c.ID)
		if !inUse {
			using, _ = found.Users.FileOpen(c.ID)
		}
		seen.Copies = append(seen.Copies, copyToPeer(plan.Copy{Copy: c, UsedBy: using}))
	}
	if err == nil {
		err = d.Check() // fails if the disk was closed meanwhile
	}
	if err != nil {
		return peer.Disk{Name: on, UUID: d.uuid, Problem: err.Error(), Copies: []peer.Copy{}}
	}
	if err := found.Users.Err(); err != nil {
		seen.UsageUnknown = err.Error()
	}
	seen.Total, seen.Free = found.Space.Total, found.Space.Free
	return seen
}
