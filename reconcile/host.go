package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// shown is what others may look at by themselves, as the last look left it. It is not
// changed any more.
type shown struct {
	node, config string
	suspect      map[Key]bool
	disks        map[string]shownDisk
	images       map[string]schema.Image
}

// shownDisk is a disk that was opened. It may be closed any time: whoever looks at it
// then gets errors, and never that nothing is there.
type shownDisk struct {
	*disk.Disk
	uuid    string
	problem string
}

var errNoLook = errors.New("the disks were not looked at yet")

// Host returns what a server for other nodes answers with. It may be used by any
// goroutine, at any time.
func (r *Reconciler) Host() peer.Host {
	return peer.Host{Board: r.board, Look: r.answer, Disk: r.readable, Leaving: r.withdrawn, Declared: r.declared}
}

func (r *Reconciler) show(d Desired, o Observed) {
	now := &shown{node: d.Node, config: d.told(), suspect: suspects(o.Tries), disks: map[string]shownDisk{}, images: d.Config.Images}
	for ref, one := range r.disks.open {
		now.disks[ref.Disk] = shownDisk{one.Disk, o.Disks[ref].UUID, o.Disks[ref].Problem}
	}
	r.shown.Store(now)
}

// readable returns a disk of this node that can be read.
func (r *Reconciler) readable(name string) (*disk.Disk, bool) {
	now := r.shown.Load()
	if now == nil {
		return nil, false
	}
	one, ok := now.disks[name]
	return one.Disk, ok && one.problem == ""
}

func (r *Reconciler) withdrawn(name string, id disk.ID) bool {
	now := r.shown.Load()
	return now == nil || r.leaving.all()[Key{schema.DiskRef{Node: now.node, Disk: name}, id}]
}

func (r *Reconciler) declared(name string) string {
	now := r.shown.Load()
	if now == nil {
		return ""
	}
	return now.images[name].ID.UUID
}

// answer looks at the disks for the images of a name. A copy that is withdrawn before
// or after the look is leaving, and the digest of the configuration is that from
// before: what changes meanwhile makes the answer count for less, never for more.
func (r *Reconciler) answer(_ context.Context, name string) (peer.State, error) {
	before := r.leaving.all()
	now := r.shown.Load()
	if now == nil {
		return peer.State{}, errNoLook
	}
	s := peer.State{Node: now.node, Config: now.config}
	for _, on := range slices.Sorted(maps.Keys(now.disks)) {
		s.Disks = append(s.Disks, now.disks[on].look(on, name))
	}
	after := r.leaving.all()
	for _, one := range s.Disks {
		for i := range one.Copies {
			key := Key{schema.DiskRef{Node: now.node, Disk: one.Name}, one.Copies[i].ID()}
			one.Copies[i].Leaving = before[key] || after[key]
			if now.suspect[key] {
				one.Copies[i].State, one.Copies[i].Message = disk.Unknown, suspected
			}
		}
	}
	return s, nil
}

// look looks at the copies of a name on one disk. If anything is wrong with the disk,
// before or after, nothing is known of its copies.
func (d shownDisk) look(on, name string) peer.Disk {
	seen := peer.Disk{Name: on, UUID: d.uuid, Problem: d.problem, Copies: []peer.Copy{}}
	if seen.Problem != "" {
		return seen
	}
	copies, err := d.ListGenerations(name)
	users := d.Users()
	for _, c := range copies {
		using := users.Using(c.ID)
		if using == "" {
			using = d.Opened(c.ID)
		}
		seen.Copies = append(seen.Copies, tellCopy(Copy{Copy: c, Using: using}))
	}
	space, spaceErr := d.Space() // fails when the disk was closed meanwhile
	if err := errors.Join(err, spaceErr, d.Check()); err != nil {
		return peer.Disk{Name: on, UUID: d.uuid, Problem: err.Error(), Copies: []peer.Copy{}}
	}
	seen.UsageUnknown, seen.Total, seen.Free = users.Unknown(), space.Total, space.Free
	return seen
}
