package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const gib = 1 << 30

// world is a node with disks, in memory: what is really there, and what a manager
// that acts as package disk promises makes of it.
type world struct {
	dice
	disks   map[schema.DiskRef]*platter
	serves  map[string]string // letter of the bytes behind an address
	offline bool              // the origin
	mono    time.Duration     // since the start
	wall    time.Duration     // how far the wall clock is off
	stepped bool              // since it was last noted
}

// platter is one disk.
type platter struct {
	there      bool
	dying      bool  // whatever is written fails
	unreadable bool  // a replica's metadata
	readOnly   bool  // nothing can be written, and marks neither
	filled     int64 // by others
	folders    map[disk.ID]*folder
}

const platterSize = 8 * gib

// folder is one image folder.
type folder struct {
	letter  string // of the bytes in the file; "": no file
	touched bool   // the evidence does not fit any more
	owned   bool
	digest  string // letter that the record vouches for
	failed  string
	checked time.Time
	part    int64
	users   int
	mark    plan.Usage
	made    time.Duration // when the manager made or adopted it
	used    time.Duration // when the manager last saw it used
	wanted  time.Duration // when it was last wanted, whatever the ranks
}

var worldStart = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

func (w *world) now() time.Time { return worldStart.Add(w.mono + w.wall) }

func (w *world) refs() []schema.DiskRef {
	return slices.SortedFunc(maps.Keys(w.disks), plan.CompareDisks)
}

func (p *platter) free() int64 {
	free := platterSize - p.filled
	for _, f := range p.folders {
		free -= f.part
		if f.letter != "" {
			free -= gib
		}
	}
	return max(0, free)
}

func (p *platter) ids() []disk.ID { return slices.SortedFunc(maps.Keys(p.folders), plan.CompareIDs) }

// look is what Look sees.
func (w *world) look(c schema.Config) map[schema.DiskRef]plan.Disk {
	disks := map[schema.DiskRef]plan.Disk{}
	for name := range c.Nodes["node1"].Disks {
		ref := schema.DiskRef{Node: "node1", Disk: name}
		p := w.disks[ref]
		if !p.there {
			disks[ref] = plan.Disk{Problem: "not there"}
			continue
		}
		seen := plan.Disk{ClockStepped: w.stepped, Space: disk.Space{Total: platterSize, Free: p.free()}, Copies: map[disk.ID]plan.Copy{}}
		for id, f := range p.folders {
			seen.Copies[id] = f.look(id, p)
		}
		disks[ref] = seen
	}
	return disks
}

func (f *folder) look(id disk.ID, p *platter) plan.Copy {
	c := plan.Copy{Copy: disk.Copy{
		ID: id, State: disk.Pending, Owned: f.owned, HasCfg: true, PartBytes: f.part, VerifiedAt: f.checked,
		InUseRecorded: f.mark.InUse, LastUsed: f.mark.LastUsed, SurplusSince: f.mark.SurplusSince, ClockNode: f.mark.By,
	}}
	if f.part > 0 {
		c.PartTotal = gib
	}
	c.UsedBy = f.using(p)
	if f.letter == "" {
		return c
	}
	c.Size, c.RealSize, c.State = gib, gib, disk.Ready
	switch {
	case !f.owned:
		c.State, c.Message = disk.Unknown, "not verified yet"
	case f.touched:
		c.State, c.Message = disk.Unknown, "changed"
	case f.failed != "":
		c.State, c.Message = disk.Failed, f.failed
	default:
		c.SHA512, c.ManifestDigest = plantest.Digest(disk.SHA512, f.digest), plantest.Digest(disk.SHA256, f.digest)
	}
	return c
}

func (f *folder) using(p *platter) string {
	switch {
	case f.users > 0:
		return "used by a replica"
	case p.unreadable:
		return "cannot determine what is in use"
	}
	return ""
}

func (p *platter) folder(id disk.ID) *folder {
	if p.folders[id] == nil {
		p.folders[id] = &folder{}
	}
	return p.folders[id]
}

// do is the effect of an action that has run to its end, or its failure.
func (w *world) do(a plan.Action, image schema.Image, reserve int64) error {
	p := w.disks[a.CopyRef().Disk]
	id := a.CopyRef().ID
	if !p.there || p.readOnly || p.dying && !a.Op.Deletes() {
		return errors.New("input/output error")
	}
	switch a.Op {
	case plan.Download:
		letter := w.serves[image.Source.Download.URL]
		if w.offline {
			return &fetch.Error{Class: fetch.Network, Err: errors.New("no connection")}
		}
		want := image.Checksum
		if want.IsZero() {
			want = a.Pinned.Digest
		}
		return w.fill(p, id, letter, want, reserve)
	case plan.Sync:
		from := w.disks[a.LocalSource.Disk]
		source := from.folders[a.LocalSource.ID]
		if !from.there || source == nil || source.letter == "" || source.touched || source.failed != "" || !source.owned {
			return fmt.Errorf("open %s: it is not ready", a.From)
		}
		return w.fill(p, id, source.letter, plantest.Digest(disk.SHA512, source.digest), reserve)
	case plan.Adopt, plan.Verify:
		return w.verify(p.folders[id])
	case plan.Cleanup, plan.Evict:
		f := p.folders[id]
		if why := f.using(p); why != "" {
			return &disk.InUseError{ID: id, Reason: why}
		}
		delete(p.folders, id)
		return nil
	}
	panic("no effect of " + string(a.Op))
}

// fill is what a part and its commit do.
func (w *world) fill(p *platter, id disk.ID, letter string, want disk.Digest, reserve int64) error {
	f := p.folder(id)
	f.owned = true
	if f.letter != "" && (f.failed == "" || f.touched) {
		return fmt.Errorf("%s is ready already", id)
	}
	if lack := gib - f.part; p.free()-reserve < lack {
		f.part = 0
		return &disk.NoSpaceError{Need: gib, Free: p.free()}
	}
	f.part = 0
	if got := plantest.Digest(disk.SHA512, letter); !want.IsZero() && want != got {
		return &disk.ChecksumError{Want: want, Got: got}
	}
	if why := f.using(p); f.letter != "" && why != "" {
		return &disk.InUseError{ID: id, Reason: why}
	}
	f.letter, f.digest, f.failed, f.touched, f.checked, f.made = letter, letter, "", false, w.now(), w.mono
	return nil
}

func (w *world) verify(f *folder) error {
	if f == nil || f.letter == "" {
		return errors.New("no such file")
	}
	if !f.owned {
		f.owned, f.digest, f.made = true, f.letter, w.mono
	}
	f.touched, f.failed = false, ""
	if f.digest != f.letter {
		f.failed = "damaged"
		return nil
	}
	f.checked = w.now()
	return nil
}
