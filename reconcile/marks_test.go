package reconcile

import (
	"errors"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Without a mark it is not known which other copies are the withdrawn one. One that is in use, and is not on another file
// system of the same node, keeps it.
func TestUsedCopyMayBeTheWithdrawnOne(t *testing.T) {
	t.Parallel()
	id := ident.ID{Name: "parrot", UUID: "00000001"}
	at := func(node string, device uint64, used string) plan.Observed {
		o := plan.Observed{Disks: map[ident.DiskRef]model.Disk{}}
		add := func(ref ident.DiskRef, device uint64, used string) {
			c := model.Copy{ID: id, Folder: model.FolderID{Device: device, Inode: 1}, UsedBy: used}
			o.Disks[ref] = model.Disk{Copies: map[ident.ID]model.Copy{id: c}}
		}
		add(ident.DiskRef{Node: "node1", Disk: "a"}, 1, "")
		add(ident.DiskRef{Node: node, Disk: "b"}, device, used)
		return o
	}
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "a"}, ID: id}
	for _, tt := range []struct {
		name    string
		o       plan.Observed
		written bool
		kept    bool
	}{
		{"same file system", at("node1", 1, "used by replica vol-1"), false, true},
		{"other file system", at("node1", 2, "used by replica vol-1"), false, false},
		{"other node", at("node2", 0, "used by replica vol-1"), false, true},
		{"unused", at("node2", 0, ""), false, false},
		{"the mark was written", at("node2", 0, "used by replica vol-1"), true, false},
	} {
		m := mark{Mark: disk.Mark{Name: "1", Secret: "2"}}
		if !tt.written {
			m.problem = errors.New("no space")
		}
		if err := m.mayBeUsed(tt.o, key); (err != nil) != tt.kept {
			t.Errorf("%s: error %v, want one: %v", tt.name, err, tt.kept)
		}
	}
}
