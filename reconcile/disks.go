package reconcile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// disks are the declared disks of this node, opened if possible. Its methods are for one goroutine,
// but any goroutine may use a system.Disk.
type disks struct {
	openAt func(path string) (d system.Disk, uuid string, err error)
	open   map[ident.DiskRef]*openDisk

	problems map[ident.DiskRef]diskProblem // since when disks have had a problem, see trackProblems
}

// openDisk is a declared disk that is open, or the reason why it cannot be used.
type openDisk struct {
	handle  system.Disk // nil if it could not be opened
	path    string      // as declared
	uuid    string      // "" if it is not known
	problem string      // why the disk cannot be used; "" if it can
	locked  error       // a disk.ErrLocked if another process writes to it; nil otherwise
}

// refresh opens the declared disks that are not open, and closes disks that are not declared
// any more, or are not at their path any more. busy reports whether a job uses a disk, which then
// stays open.
func (s *disks) refresh(declared map[ident.DiskRef]schema.Disk, busy func(ident.DiskRef) bool) {
	for ref, o := range s.open {
		if o.handle != nil {
			o.problem = "" // determined again below; a disk that could not be opened keeps its problem
		}
		want, ok := declared[ref]
		unusable := !ok || o.handle == nil || want.Path != o.path || o.handle.Check() != nil
		if unusable && !busy(ref) {
			_ = o.close() // no job uses it, so no write can be lost
			delete(s.open, ref)
		} else if unusable && o.handle != nil {
			// The job still has the disk open. The planner must not count on its copies.
			o.problem = "the disk is not at its path any more"
		}
	}
	for ref, want := range declared {
		if _, ok := s.open[ref]; !ok {
			s.open[ref] = s.openDisk(want.Path)
		}
	}
	s.rejectDuplicates()
}

// uuid returns the uuid of a disk; "" if it is not known.
func (s *disks) uuid(ref ident.DiskRef) string {
	if one := s.open[ref]; one != nil {
		return one.uuid
	}
	return ""
}

// openDisk opens and locks the disk at a path.
func (s *disks) openDisk(path string) *openDisk {
	d, uuid, err := s.openAt(path)
	o := &openDisk{handle: d, path: path, uuid: uuid}
	if err == nil {
		return o
	}
	o.problem = err.Error()
	switch {
	case errors.Is(err, disk.ErrLocked):
		o.locked = err
	case uuid != "": // it is initialised: disk init would not help
	case errors.Is(err, fs.ErrNotExist): // there is no folder at the path
		o.problem += fmt.Sprintf(": mount it there; if it is new, make the folder and run: backing-image-manager disk init %s", path)
	case errors.Is(err, disk.ErrNotInitialised) && !errors.Is(err, fs.ErrPermission):
		o.problem += fmt.Sprintf(": if it is mounted and new, run: backing-image-manager disk init %s", path)
	}
	return o
}

// lockedElsewhere returns an error that is disk.ErrLocked if another process has locked one of
// the disks, and nil otherwise.
func (s *disks) lockedElsewhere() error {
	for _, ref := range slices.SortedFunc(maps.Keys(s.open), ident.DiskRef.Compare) {
		if err := s.open[ref].locked; err != nil {
			return fmt.Errorf("disk %s: %w", ref, err)
		}
	}
	return nil
}

// onlyLocked returns an error that is disk.ErrLocked if another process has locked a disk and no other
// disk can be used. Then this process has nothing to do. Most likely the other process is a manager of
// the same node.
func (s *disks) onlyLocked() error {
	if len(s.usable()) > 0 {
		return nil
	}
	return s.lockedElsewhere()
}

// rejectDuplicates rejects disks with the same uuid (I10): both paths show one disk, or one disk is a copy of the
// other. It is not known which disk the configuration means.
//
// If two disks with different uuids show one folder of copies, the later disk by name is rejected (U5), because its copies
// are those of the first disk.
func (s *disks) rejectDuplicates() {
	first, folders := map[string]ident.DiskRef{}, map[model.FolderID]ident.DiskRef{}
	for _, ref := range slices.SortedFunc(maps.Keys(s.open), ident.DiskRef.Compare) {
		o := s.open[ref]
		if o.uuid == "" {
			continue
		}
		twin, duplicate := first[o.uuid]
		if !duplicate {
			first[o.uuid] = ref
			o.rejectSharedFolder(ref, folders)
			continue
		}
		problem := fmt.Sprintf("%s and %s have the same diskUUID %s: both paths show one disk, or one disk is a copy of the other; remove one from the configuration, or give the copy a new identity: remove its longhorn-disk.cfg and run disk init", twin, ref, o.uuid)
		other := s.open[twin]
		o.problem, other.problem = problem, problem
		if o.handle != nil || other.handle != nil {
			o.locked, other.locked = nil, nil // one disk at two paths: this process has the lock
		}
	}
}

// rejectSharedFolder gives the disk a problem if folders already has its folder of copies. Otherwise it adds this folder.
func (o *openDisk) rejectSharedFolder(ref ident.DiskRef, folders map[model.FolderID]ident.DiskRef) {
	if o.handle == nil || o.problem != "" {
		return
	}
	folder, err := o.handle.Folder()
	if other, shared := folders[folder]; shared {
		o.problem = fmt.Sprintf("%s and %s show the same folder backing-images, and only %s is used: unmount one of the disks, or remove %s from the configuration", other, ref, other, ref)
	} else if err == nil && folder != (model.FolderID{}) {
		folders[folder] = ref
	}
}

// observe lists the copies on a disk. reads(id) reports whether a job of this process uses the copy.
func (o *openDisk) observe(reads func(ident.ID) bool) model.Disk {
	if o.handle == nil {
		return model.Disk{Problem: o.problem}
	}
	seen := model.Disk{Path: o.path, UUID: o.uuid, Problem: o.problem}
	if seen.Problem != "" {
		return seen
	}
	found, err := o.handle.List("")
	if err != nil {
		seen.Problem = err.Error()
		return seen
	}
	seen.Space, seen.ReadOnly, seen.Unmanaged = found.Space, found.ReadOnly, found.Unmanaged
	if err := found.Users.Err(); err != nil {
		seen.UsageUnknown = err.Error()
	}
	seen.Copies = make(map[ident.ID]model.Copy, len(found.Copies))
	for _, c := range found.Copies {
		using, inUse := found.Users.InUse(c.ID)
		switch {
		case inUse || c.SurplusSince.IsZero(): // FileOpen is slow, and matters only for surplus copies
		case !reads(c.ID):
			using, _ = found.Users.FileOpen(c.ID)
		case c.InUseRecorded: // FileOpen would find this process, and hide others
			using = "it was in use when the job that reads it began"
		}
		c.UsedBy = using
		seen.Copies[c.ID] = c
	}
	for id, need := range found.Users.Needs() {
		if seen.Needs == nil {
			seen.Needs = map[ident.ID]model.Need{}
		}
		seen.Needs[id] = system.NeedOf(need)
	}
	return seen
}

// endUses ends the uses of an image by replicas that are not found any more.
func (s *disks) endUses(image, uuid string) {
	for _, o := range s.open {
		if o.handle != nil {
			o.handle.EndUses(image, uuid)
		}
	}
}

// close closes the disk if it is open.
func (o *openDisk) close() error {
	if o.handle == nil {
		return nil
	}
	return o.handle.Close()
}

// close closes all disks.
func (s *disks) close() error {
	var err error
	for _, o := range s.open {
		err = errors.Join(err, o.close())
	}
	s.open = map[ident.DiskRef]*openDisk{}
	return err
}

// diskProblem records since when a disk has had a problem, by the steady clock.
type diskProblem struct {
	path  string // as declared
	since time.Time
}

// trackProblems records since when disks have had a problem, and adds these times to o. A disk
// that is declared again, or at another path, is another disk.
func (s *disks) trackProblems(d plan.Desired, o plan.Observed, now time.Time) {
	maps.DeleteFunc(s.problems, func(ref ident.DiskRef, p diskProblem) bool {
		declared, ok := d.Disk(ref)
		return !ok || declared.Path != p.path || o.Disks[ref].Problem == ""
	})
	for ref, seen := range o.Disks {
		if seen.Problem == "" {
			continue
		}
		p, known := s.problems[ref]
		if !known {
			declared, _ := d.Disk(ref)
			p = diskProblem{declared.Path, now}
			s.problems[ref] = p
		}
		seen.ProblemSince = o.Now.Add(p.since.Sub(now))
		o.Disks[ref] = seen
	}
}

// usable returns the disks without a problem.
func (s *disks) usable() system.Disks {
	usable := system.Disks{}
	for ref, o := range s.open {
		if o.handle != nil && o.problem == "" {
			usable[ref.Disk] = o.handle
		}
	}
	return usable
}

// handles returns the disks that are open, also those with a problem.
func (s *disks) handles() system.Disks {
	open := system.Disks{}
	for ref, o := range s.open {
		if o.handle != nil {
			open[ref.Disk] = o.handle
		}
	}
	return open
}

// cannotExport returns the images whose first copy this node cannot create because it has no
// replica to export, with the reason. Images with a ready copy need no first copy.
func (s *disks) cannotExport(d plan.Desired, o plan.Observed, jobs system.Jobs) map[ident.ID]string {
	reasons := map[ident.ID]string{}
	usable := s.usable()
	for _, image := range d.Config.Images {
		e := image.Source.ExportFromVolume
		if e == nil || o.AnyReady(image.ID) {
			continue
		}
		if err := jobs.CanExport(*e, usable); err != nil {
			reasons[image.ID] = err.Error()
		}
	}
	return reasons
}
