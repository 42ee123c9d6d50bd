package reconcile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// disks are the declared disks of this node, as far as they can be opened. They
// are for one goroutine; the *disk.Disk handed out are for any.
type disks struct {
	readOnly bool // open without a lock, for a dry run
	open     map[schema.DiskRef]*openDisk
}

type openDisk struct {
	*disk.Disk
	unlock  func() error
	uuid    string // "" when it could not be told
	problem string
	locked  error // a disk.ErrLocked
}

// refresh opens what is declared and not open yet, and looks whether the others
// are still what they were. busy says that a disk must not be closed now.
func (s *disks) refresh(declared map[schema.DiskRef]schema.Disk, busy func(schema.DiskRef) bool) {
	if s.open == nil {
		s.open = map[schema.DiskRef]*openDisk{}
	}
	for ref, o := range s.open {
		if o.Disk != nil {
			o.problem = "" // found out anew
		}
		want, ok := declared[ref]
		gone := !ok || o.Disk == nil || want.Path != o.Path() || o.Check() != nil
		if gone && !busy(ref) {
			_ = o.close() // nothing was written through what is closed here
			delete(s.open, ref)
		} else if gone && o.Disk != nil {
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

// uuid is that of a disk, "" if it could not be told.
func (s *disks) uuid(ref schema.DiskRef) string {
	if one := s.open[ref]; one != nil {
		return one.uuid
	}
	return ""
}

func (s *disks) openDisk(path string) *openDisk {
	d, err := disk.Open(path)
	if err != nil {
		problem := err.Error()
		switch {
		case errors.Is(err, fs.ErrNotExist): // not even a folder
			problem += fmt.Sprintf(": mount it there; if it is new, make the folder and run: backing-image-manager disk init %s", path)
		case errors.Is(err, disk.ErrNotInitialised) && !errors.Is(err, fs.ErrPermission):
			problem += fmt.Sprintf(": if it is mounted and new, run: backing-image-manager disk init %s", path)
		}
		return &openDisk{problem: problem}
	}
	if s.readOnly {
		return &openDisk{Disk: d, uuid: d.UUID()}
	}
	unlock, err := d.Lock()
	if err != nil {
		d.Close()
		o := &openDisk{problem: err.Error(), uuid: d.UUID()}
		if errors.Is(err, disk.ErrLocked) {
			o.locked = err
		}
		return o
	}
	return &openDisk{Disk: d, unlock: unlock, uuid: d.UUID()}
}

// lockedElsewhere is an error that is disk.ErrLocked when another process writes to
// one of the disks.
func (s *disks) lockedElsewhere() error {
	for _, ref := range slices.SortedFunc(maps.Keys(s.open), plan.CompareDisks) {
		if err := s.open[ref].locked; err != nil {
			return fmt.Errorf("disk %s: %w", ref, err)
		}
	}
	return nil
}

// rejectDuplicates finds disks with the same identity: one of them is a copy of the
// other, or they are one disk at two paths, and nobody can tell which is meant.
func (s *disks) rejectDuplicates() {
	first := map[string]schema.DiskRef{}
	for _, ref := range slices.SortedFunc(maps.Keys(s.open), plan.CompareDisks) {
		o := s.open[ref]
		if o.uuid == "" {
			continue
		}
		twin, taken := first[o.uuid]
		if !taken {
			first[o.uuid] = ref
			continue
		}
		problem := fmt.Sprintf("%s and %s have the same diskUUID %s: one is a copy of the other; give one a new identity: remove its longhorn-disk.cfg and run disk init", twin, ref, o.uuid)
		other := s.open[twin]
		o.problem, other.problem = problem, problem
		if o.Disk != nil || other.Disk != nil {
			o.locked, other.locked = nil, nil // one disk at two paths: it is this process that holds it
		}
	}
}

// observe observes one disk. reads says which images this process reads by itself.
func (o *openDisk) observe(reads func(disk.ID) bool) plan.Disk {
	if o.Disk == nil {
		return plan.Disk{Problem: o.problem}
	}
	seen := plan.Disk{Path: o.Path(), UUID: o.UUID(), Problem: o.problem}
	if seen.Problem != "" {
		return seen
	}
	listing, err := o.List()
	if err == nil {
		seen.Space, err = o.Space()
	}
	if err != nil {
		seen.Problem = err.Error()
		return seen
	}
	users := o.Users()
	seen.Unmanaged = listing.Unmanaged
	if err := users.Err(); err != nil {
		seen.UsageUnknown = err.Error()
	}
	seen.Copies = make(map[disk.ID]plan.Copy, len(listing.Copies))
	for _, c := range listing.Copies {
		using, inUse := users.InUse(c.ID)
		switch {
		case inUse || c.SurplusSince.IsZero(): // it matters for what may go, and costs too much for all
		case !reads(c.ID):
			using, _ = o.FileOpen(c.ID)
		case c.InUseRecorded:
			using = "it was in use when the work that reads it began"
		}
		seen.Copies[c.ID] = plan.Copy{Copy: c, UsedBy: using}
	}
	return seen
}

func (o *openDisk) close() error {
	if o.Disk == nil {
		return nil
	}
	var err error
	if o.unlock != nil {
		err = o.unlock()
	}
	return errors.Join(err, o.Disk.Close())
}

func (s *disks) close() error {
	var err error
	for _, o := range s.open {
		err = errors.Join(err, o.close())
	}
	s.open = nil
	return err
}

// usable are the open disks by name.
func (s *disks) usable() map[string]*disk.Disk {
	usable := map[string]*disk.Disk{}
	for ref, o := range s.open {
		if o.Disk != nil && o.problem == "" {
			usable[ref.Disk] = o.Disk
		}
	}
	return usable
}
