package evidence

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Failures are the last failures of jobs on this node, and the copies that are suspected because
// of them.
type Failures map[ident.CopyRef]Failure

// Failure is a failure under one declaration. It does not apply to another declaration or
// another disk. Its times are steady times, because the wall clock may be set while it waits.
type Failure struct {
	model.Failure
	Image    schema.Image
	DiskUUID string // "" if it was not known
	Unproven int    // deletions in succession that were cancelled because a proof did not pass
	Reads    FailingReads
}

// OnWallClock returns the failures with their times converted to the wall clock.
func (f Failures) OnWallClock(now system.Instant) map[ident.CopyRef]model.Failure {
	converted := make(map[ident.CopyRef]model.Failure, len(f))
	for key, record := range f {
		converted[key] = record.Translated(now.Steady, now.Wall)
	}
	return converted
}

// ClearCopy drops the failure of a copy, and all suspicions against it.
func (f Failures) ClearCopy(key ident.CopyRef) {
	f.ClearFailure(key)
	f.clearSuspicions(func(suspect ident.CopyRef) bool { return suspect == key })
}

// ClearDeleted drops what concerns a copy that was deleted. It keeps a failure for lack of space: the deletion only frees
// what the failed attempt had used.
func (f Failures) ClearDeleted(key ident.CopyRef) {
	f.clearSuspicions(func(suspect ident.CopyRef) bool { return suspect == key })
	if record := f[key]; record.NeedsSpace == 0 || record.Op.Deletes() {
		f.ClearFailure(key)
		return
	}
	if record := f[key]; record.Op == model.Verify { // the lack of space concerns the actions that create the copy again
		record.Op = ""
		f[key] = record
	}
}

// ClearFailure drops the failure of a copy. It keeps the copies that are suspected because of the
// failure: a later success, with bytes from elsewhere, does not show that a suspect is sound.
func (f Failures) ClearFailure(key ident.CopyRef) {
	record, failed := f[key]
	if failed {
		f[key] = Failure{Failure: model.Failure{Suspects: record.Suspects}, Image: record.Image, DiskUUID: record.DiskUUID}
	}
	if len(record.Suspects) == 0 {
		delete(f, key)
	}
}

// clearSuspicions drops the suspicions against the copies for which cleared returns true.
func (f Failures) clearSuspicions(cleared func(ident.CopyRef) bool) {
	for key, record := range f {
		if !slices.ContainsFunc(record.Suspects, cleared) {
			continue
		}
		// Observations share the slice, so it must not be changed.
		record.Suspects = slices.DeleteFunc(slices.Clone(record.Suspects), cleared)
		f[key] = record
		if record.Attempts == 0 && record.Op == "" {
			f.ClearFailure(key) // the record had only the suspicion
		}
	}
}

// DropStale drops the failures under another declaration, on another disk or on a disk that is
// not declared any more, and the failures of jobs whose file does not exist any more. It drops the
// suspicions against copies that do not exist any more.
func (f Failures) DropStale(d plan.Desired, o plan.Observed) {
	for key, record := range f {
		declaration := d.Config.Images[key.ID.Name]
		_, declared := d.Disk(key.Disk)
		if !declared || !plan.SameDeclaration(record.Op, record.Image, declaration) || record.Op.NeedsFile() && o.LostFile(key) || o.IsOtherDisk(key.Disk, record.DiskUUID) {
			f.ClearFailure(key)
		}
	}
	f.clearSuspicions(o.LostFile)
}

// EndDelays ends the waits after failures of an image on the given disks, and returns the copies, sorted. No disks mean all
// disks. A final failure is tried again, too. The numbers of attempts and the suspicions stay. Deletions are left out, because
// their delays separate the nodes that delete copies of one image. Uploads are left out, because only a client can start them.
func (f Failures) EndDelays(id ident.ID, on []ident.DiskRef, now time.Time) (copies []ident.CopyRef) {
	for key, record := range f {
		waits := record.Attempts > 0 && (record.Final || record.RetryAt.After(now))
		switch {
		case key.ID != id, len(on) > 0 && !slices.Contains(on, key.Disk), !waits:
		case record.Op.Deletes(), record.Op == model.Upload:
		default:
			record.Final, record.RetryAt = false, now
			f[key] = record
			copies = append(copies, key)
		}
	}
	slices.SortFunc(copies, func(a, b ident.CopyRef) int { return ident.DiskRef.Compare(a.Disk, b.Disk) })
	return copies
}

// FailingReads are the failed attempts to sync or repair a copy from other nodes, since the last attempt with another
// outcome. Syncs and repairs count together, because a sync follows a failed repair, and a repair a failed sync.
type FailingReads struct {
	began    time.Time // steady; the beginning of the first attempt
	received int64     // bytes of all attempts
}

// minReadRate is the least rate, in bytes per second, at which a sync or a repair that fails again and again may
// go on with its sources. A slower job would take days for an image of some GiB.
const minReadRate = 64 << 10

// After returns f with one more failed attempt; began is its steady start. The result is zero unless the attempt read from other
// nodes, for an image with a checksum that is no upload, and the network was the fault. A repair for which no other node has a copy
// reads only the upstream: it does not count.
func (f FailingReads) After(a plan.Action, image schema.Image, fault model.Fault, began time.Time, received int64) FailingReads {
	readsPeers := (a.Op == model.Sync || a.Op == model.Repair) && a.From != (ident.CopyRef{}) && a.LocalSource == (ident.CopyRef{})
	if !readsPeers || fault != model.FaultNetwork || image.Checksum.IsZero() || image.Source.Upload != nil {
		return FailingReads{}
	}
	if f.began.IsZero() {
		f.began = began
	}
	f.received += received
	return f
}

// AreHopeless reports whether the attempts have failed for the recovery interval and received next to nothing. limit is the
// bandwidth limit; 0: there is none.
func (f FailingReads) AreHopeless(limit int64, recovery time.Duration, now time.Time) bool {
	lasted := now.Sub(f.began)
	least := float64(minReadRate)
	if limit > 0 {
		least = min(least, float64(limit)/2)
	}
	return !f.began.IsZero() && lasted >= recovery && float64(f.received) < least*lasted.Seconds()
}
