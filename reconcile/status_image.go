package reconcile

import (
	"cmp"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// ImageStatus is one generation of an image: declared, or one of which copies are
// left.
type ImageStatus struct {
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	Declared bool   `json:"declared"`
	// Removed: it is confirmed that no image of that name is declared any more.
	Removed bool   `json:"removed,omitempty"`
	Source  string `json:"source,omitempty"`
	// Declaration changes with the declared bytes and the way to them, and not with
	// where copies should be: what failed under another one means nothing.
	Declaration string      `json:"declaration,omitempty"`
	Expected    disk.Digest `json:"expectedChecksum"`
	Wanted      int         `json:"wanted"`            // copies declared; on all nodes together
	Ready       int         `json:"ready"`             // copies that are ready, on all nodes that answer
	Message     string      `json:"message,omitempty"` // about the image, whatever its copies are
	// Suspended is what suspends the image, its own suspension or that of everything. One
	// that is over suspends nothing.
	Suspended *Suspension `json:"suspended,omitempty"`
	// Unable says why this node cannot make the first copy, where that is so.
	Unable string `json:"unable,omitempty"`
	// BackedUp: this node has seen a whole backup of its copy where one is declared.
	BackedUp bool         `json:"backedUp,omitempty"`
	Copies   []CopyStatus `json:"copies"` // those that are there or wanted, on any node
	// PassedOver says, of an image that has fewer copies than it should, which disks
	// get none, and why.
	PassedOver []PassedOver `json:"passedOver,omitempty"`
}

// PassedOver is a reason for which disks get no copy of an image.
type PassedOver struct {
	Why   string `json:"why"`
	Count int    `json:"count"` // of disks
	// Disks are their names, NODE/DISK, sorted. Where very many disks are passed over
	// for very many images, some are only counted.
	Disks []string `json:"disks,omitempty"`
}

func (t *telling) image(id disk.ID) ImageStatus {
	s := ImageStatus{Name: id.Name, UUID: id.UUID, Copies: []CopyStatus{}, Removed: t.Desired.gone(id.Name)}
	places := t.at[id]
	if image, ok := t.Desired.Config.Images[id.Name]; ok && image.ID == id {
		now := t.seen[id]
		s.Declared, s.Source, s.Expected, s.Declaration = true, string(image.Source.Kind()), image.Checksum, now.declaration
		s.Wanted, s.Ready, s.PassedOver = now.wanted, now.ready, now.passed
		by := cmp.Or(t.Desired.suspension(image, t.Observed.Now), image.Suspend)
		s.Suspended = tellSuspension(by, t.Observed.Now)
		for _, ref := range now.want {
			places[ref] = true
		}
	}
	s.Unable, s.BackedUp = t.Observed.Unable[id], t.Observed.BackedUp[id]
	s.Message = t.plan[Key{schema.DiskRef{Node: t.Desired.Node}, id}].Reason
	for _, ref := range slices.SortedFunc(maps.Keys(places), compareRefs) {
		s.Copies = append(s.Copies, t.copy(Key{ref, id}))
	}
	return s
}
