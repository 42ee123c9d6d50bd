package scenario

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// execute executes an action. It reports false if an earlier action of the round has made it
// impossible.
func (w *world) execute(a plan.Action) bool {
	ref := a.CopyRef()
	var err error
	switch {
	case a.Op.Deletes():
		if !w.confirmsDeletion(a) {
			return false
		}
		w.deleteCopy(a)
		return true
	case a.Op == plan.Backup:
		w.at(ref.Disk).backedUp[ref.ID] = true
	case a.Op.NeedsFile():
		w.setReady(ref)
	case a.Op == plan.Sync, a.Op == plan.Clone:
		from, ok := w.sourceCopy(a.From)
		if !ok {
			return false
		}
		err = w.fill(a, from)
	default:
		if err = w.checkSource(a); err == nil {
			err = w.fill(a, w.newCopy(ref.ID, disk.Ready, w.sourceOf(a.Image).size))
		}
	}
	w.invalidate()
	w.record(a, err)
	return true
}

// record adds an action to the history, and its failure to the disk.
func (w *world) record(a plan.Action, err error) {
	w.history = append(w.history, executed{a, w.now, err})
	failures, id := w.at(a.CopyRef().Disk).failures, a.CopyRef().ID
	if err != nil {
		failures[id] = job.NextFailure(failures[id], a, err, w.now, 0)
		return
	}
	delete(failures, id)
}

// confirmsDeletion reports whether the other nodes confirm a deletion after the copy was
// withdrawn.
func (w *world) confirmsDeletion(a plan.Action) bool {
	ref, d := a.CopyRef(), w.desired(a.Node)
	o := w.cluster().Observe([]plan.Desired{d})[0]
	seen := o.Disks[ref.Disk]
	seen.Copies = maps.Clone(seen.Copies)
	c := seen.Copies[ref.ID]
	c.Leaving = true
	seen.Copies[ref.ID] = c
	o.Disks[ref.Disk] = seen
	o.Running[ref] = true
	return d.ConfirmDeletion(o, a) == nil
}

// deleteCopy deletes a copy. It updates the cached cluster at once: another node may have
// counted on the copy in the same round.
func (w *world) deleteCopy(a plan.Action) {
	ref := a.CopyRef()
	d, c := w.at(ref.Disk), w.cluster()
	d.Space.Free = min(d.Space.Total, d.Space.Free+d.Copies[ref.ID].RealSize)
	delete(d.Copies, ref.ID)
	delete(d.backedUp, ref.ID)
	w.record(a, nil)
	delete(c.Failures, ref)
	delete(c.BackedUp, ref)
	c.Disks[ref.Disk] = d.observe(w.now)
	c.Publish(w.desired(ref.Disk.Node))
	w.cachedPlan, w.observed = nil, false
}

// setReady is the effect of an adoption, a verification or a repair.
func (w *world) setReady(ref plan.CopyRef) {
	d := w.at(ref.Disk)
	c := d.Copies[ref.ID]
	c.State, c.Message, c.Owned, c.HasCfg, c.VerifiedAt = disk.Ready, "", true, true, w.now
	sha512, sha256, manifest := digestsOf(w.base.Config, ref.ID)
	if c.SHA512.IsZero() {
		c.SHA512 = sha512
	}
	if c.SHA256.IsZero() {
		c.SHA256 = sha256
	}
	if c.ManifestDigest.IsZero() {
		c.ManifestDigest = manifest
	}
	d.Copies[ref.ID] = c
}

// sourceCopy returns the copy that an action reads, if it is ready and reachable.
func (w *world) sourceCopy(from plan.CopyRef) (plan.Copy, bool) {
	at, declared := w.locations()[from.Disk]
	if !declared {
		return plan.Copy{}, false
	}
	c, exists := w.disks[at].Copies[from.ID]
	return c, exists && c.State == disk.Ready && w.reachable(from.Disk)
}

// reachable reports whether a disk is attached and its node is up.
func (w *world) reachable(ref schema.DiskRef) bool {
	_, down := w.down[ref.Node]
	return !down && w.at(ref).detachedAt.IsZero()
}

// checkSource returns the failure of the source of a first copy, or nil.
func (w *world) checkSource(a plan.Action) error {
	s := w.sourceOf(a.Image)
	if s.nodes != nil && !slices.Contains(s.nodes, a.Node) {
		return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("node %s cannot reach the source", a.Node)}
	}
	return s.err
}

// fill writes a copy with the bytes of another one.
func (w *world) fill(a plan.Action, from plan.Copy) error {
	ref := a.CopyRef()
	d := w.at(ref.Disk)
	before := d.Copies[ref.ID]
	free := d.Space.Free + before.RealSize
	reserved := w.base.Config.Nodes[ref.Disk.Node].Disks[ref.Disk.Disk].StorageReserved
	if available := free - reserved; available < from.RealSize {
		return &disk.NoSpaceError{Need: from.RealSize, Free: max(0, available)}
	}
	c := w.newCopy(ref.ID, disk.Ready, from.RealSize)
	clone := w.base.Config.Images[a.Image].Source.Clone
	if a.Op == plan.Sync || clone != nil && clone.Encryption == schema.EncryptionIgnore {
		c.SHA512, c.SHA256, c.ManifestDigest = from.SHA512, from.SHA256, from.ManifestDigest
	}
	c.LastUsed, c.SurplusSince, c.DamagedAt, c.Declaration = before.LastUsed, before.SurplusSince, before.DamagedAt, before.Declaration
	d.Space.Free = free - from.RealSize
	d.Copies[ref.ID] = c
	return nil
}

// failures are the ways in which a source can fail.
var failures = map[string]error{
	"network":  &fetch.Error{Class: fetch.Network, Err: errors.New("no connection")},
	"refused":  &fetch.Error{Class: fetch.Refused, Err: errors.New("403 Forbidden")},
	"checksum": &disk.ChecksumError{},
	"format":   &fetch.Error{Class: fetch.BadSource, Err: errors.New("not a disk image")},
}

func failureNames() []string { return slices.Sorted(maps.Keys(failures)) }

// newFailure returns the failure with a name for the source of an image. err says that there
// is no such failure, or that the image has no declared checksum to fail.
func (w *world) newFailure(image, name string) (failure, err error) {
	failure, ok := failures[name]
	if !ok {
		return nil, fmt.Errorf("fails=%s is unknown: it must be one of %s", name, joinNames(failureNames()))
	}
	if name != "checksum" {
		return failure, nil
	}
	want := w.base.Config.Images[image].Checksum
	if want.IsZero() {
		return nil, fmt.Errorf("%s declares no checksum", image)
	}
	h := want.Algorithm().New()
	h.Write([]byte("other bytes"))
	return &disk.ChecksumError{Want: want, Got: want.Algorithm().Digest(h)}, nil
}
