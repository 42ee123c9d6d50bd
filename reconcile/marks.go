package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/serve"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// Two copies count as two only if they are two files (U5). Two disks, of one node or of two, can show one folder: by a
// bind mount, or by a file system that both mount. So a withdrawal puts a mark into the folder of the copy. The queried
// nodes look for the mark in their copies, and this node on its other disks. If another copy has the mark, nothing is
// deleted: both copies are one file. A copy whose folder has the mark of another withdrawal counts for nothing (Marked):
// that withdrawal may delete it without a query to the node that counts on it. The deletion of an orphan has a mark for one
// reason: if the image is declared again meanwhile, no deletion counts on that folder.
//
// A false claim to have seen the mark prevents no deletion: only a node that reads the mark knows its secret. A response has a
// hash of the secret and the name of the responding node. So a node cannot relay the response of another node that sees the mark.

// mark is the mark of a withdrawn copy.
type mark struct {
	disk.Mark
	problem error // why the mark could not be written; nil: it was
}

// newMark puts a mark into the folder of the copy of a deletion.
func newMark(on system.Disk, id ident.ID, secret func() uint64) mark {
	m := mark{Mark: disk.Mark{Name: fmt.Sprintf("%016x", secret()), Secret: fmt.Sprintf("%016x", secret())}}
	if err := on.SetMark(id, m.Mark); err != nil {
		m.problem = fmt.Errorf("no mark could be written into the folder of the copy to delete, and both copies may be in that folder: %w", err)
	}
	return m
}

// seenBy returns an error in these cases:
//   - The mark of the copy at key is also in the folder of another copy: on another disk of this node, or according to the
//     states of other nodes.
//   - The mark is gone. A node that starts removes all marks in its folders, and its state may be from after that.
//   - Another copy of this node has a mark, and this node has not withdrawn that copy.
func (m mark) seenBy(key ident.CopyRef, states map[string]model.Node, own *serve.Node, withdrawn map[ident.CopyRef]bool) error {
	if m.Name == "" {
		return nil
	}
	open, err := own.Open()
	if err != nil {
		return err
	}
	same := func(node, name string) error {
		return fmt.Errorf("not deleted: the folder of the copy is also that of %s, so there is one copy at two paths: unmount one path, or remove one disk from the configuration", ident.DiskRef{Node: node, Disk: name})
	}
	for _, name := range slices.Sorted(maps.Keys(open)) {
		secret, err := open[name].ReadMark(key.ID, m.Name)
		marked, markedErr := open[name].Marked(key.ID)
		other := ident.CopyRef{Disk: ident.DiskRef{Node: key.Disk.Node, Disk: name}, ID: key.ID}
		switch err = errors.Join(err, markedErr); {
		case err != nil:
			return fmt.Errorf("not deleted: disk %s: %w", name, err)
		case m.problem == nil && secret != m.Secret && other == key:
			return disk.ErrMarkGone
		case secret == m.Secret && other != key:
			return same(key.Disk.Node, name)
		case marked && other != key && !withdrawn[other]:
			return fmt.Errorf("not deleted: the copy on %s is withdrawn by another node that has the same folder; if no such node runs, restart the manager of this node", other.Disk)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(states)) {
		for name, seen := range states[node].Disks {
			if seen.Copies[key.ID].Mark == serve.MarkResponse(m.Secret, node) {
				return same(node, name)
			}
		}
	}
	return nil
}

// deletesUnmarked returns an error if another copy of the generation is being deleted and its folder got no mark. The
// deletion of the copy at key may count on a copy in that folder.
func (j *jobs) deletesUnmarked(key ident.CopyRef) error {
	for other, run := range j.running {
		if other.ID == key.ID && other != key && run.deletion != nil && run.deletion.phase == deleting && run.deletion.mark.problem != nil {
			return fmt.Errorf("not deleted: the copy on %s is being deleted without a mark that other nodes can see", other.Disk)
		}
	}
	return nil
}

// mayBeUsed returns an error if a copy in use on another disk and the copy at key may be one file: see mayBeSame. o must have
// the responses of the queried nodes, because a node does not publish every use.
func (m mark) mayBeUsed(o plan.Observed, key ident.CopyRef) error {
	for ref, seen := range o.Disks {
		if ref == key.Disk || seen.Copies[key.ID].UsedBy == "" {
			continue
		}
		if err := m.mayBeSame(o, key, ident.CopyRef{Disk: ref, ID: key.ID}); err != nil {
			return fmt.Errorf("not deleted: the copy on %s is in use: %w", ref, err)
		}
	}
	return nil
}

// mayBeSame returns an error if the copies at key and other may be one file. They are two files if both are on this node, on
// different file systems, or if the mark could be written: seenBy has not found it in the other folder.
func (m mark) mayBeSame(o plan.Observed, key, other ident.CopyRef) error {
	a, b := o.Disks[key.Disk].Copies[key.ID].Folder, o.Disks[other.Disk].Copies[other.ID].Folder
	known := a != (model.FolderID{}) && b != (model.FolderID{})
	if key.Disk.Node == other.Disk.Node && known && a.Device != b.Device {
		return nil
	}
	return m.problem
}
