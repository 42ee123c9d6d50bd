package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
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
			c := model.Copy{ID: id, Folder: model.FolderID{Device: device, Inode: device}, UsedBy: used}
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
		{"folder not known", at("node1", 0, "used by replica vol-1"), false, true},
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

// Without a mark, a use of another copy keeps the withdrawn copy, also if its node tells it only in its response: a node
// publishes only for surplus copies whether a process has the file open, and a replica may be new.
func TestUseInResponseMayBeOfTheWithdrawnCopy(t *testing.T) {
	t.Parallel()
	kept, deleted, other := ident.DiskRef{Node: "node1", Disk: "disk1"}, ident.DiskRef{Node: "node1", Disk: "disk2"}, ident.DiskRef{Node: "node2", Disk: "disk1"}
	config := plantest.NewConfig(2, 2)
	image := plantest.NewImage("parrot")
	for i := 0; plantest.RankedDisks(config, image)[0] != kept; i++ {
		image = plantest.NewImage(fmt.Sprint("parrot", i))
	}
	config.Images[image.ID.Name] = image
	copyOn := func(device uint64, used string) model.Disk {
		c := plantest.ReadyCopy(image, image.Checksum)
		c.Folder, c.UsedBy = model.FolderID{Device: device, Inode: 1}, used
		return model.Disk{UUID: fmt.Sprint(device), Copies: model.Copies{image.ID: c}}
	}
	for _, marked := range []bool{true, false} {
		for _, used := range []string{"", "a process has the file open"} {
			o := plantest.EmptyDisks(config)
			o.Disks[kept], o.Disks[deleted], o.Disks[other] = copyOn(1, ""), copyOn(2, ""), copyOn(0, "")
			d, o := plantest.AsNode("node1", config, o)
			key := ident.CopyRef{Disk: deleted, ID: image.ID}
			m := mark{Mark: disk.Mark{Name: "1", Secret: "2"}}
			if !marked {
				m.problem = errors.New("no space")
			}
			run := &activeJob{
				order: job.Order{Action: plan.NewAction(model.Cleanup, key, model.Reason{}, 0)},
				deletion: &deletion{mark: m, queried: []string{"node2"}, responses: map[string]plan.Response{
					"node1": {Proofs: map[ident.CopyRef]plan.Proof{{Disk: kept, ID: image.ID}: {Result: plan.ProofPassed}}},
					"node2": {ConfigDigest: d.Digest, Disks: map[ident.DiskRef]model.Disk{other: copyOn(0, used), {Node: "node2", Disk: "disk2"}: {}}},
				}},
			}
			err := run.confirm(d, o, 0)
			if keep := !marked && used != ""; keep != (err != nil) || keep && !strings.Contains(err.Error(), used) && !strings.Contains(err.Error(), "in use") {
				t.Errorf("marked %t, used %q: %v", marked, used, err)
			}
		}
	}
}
