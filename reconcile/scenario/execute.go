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

// execute carries out an action, and reports whether it came to that: what was planned with
// it may have made it needless.
func (w *world) execute(a plan.Action) bool {
	var err error
	switch {
	case order(a) > 0:
		if !w.mayDelete(a) {
			return false
		}
		w.remove(a)
		return true
	case a.Op == plan.Backup:
		w.at(a.CopyRef().Disk).backedUp[a.CopyRef().ID] = true
	case a.Op == plan.Adopt, a.Op == plan.Verify, a.Op == plan.Repair:
		w.setReady(a.CopyRef())
	case a.Op == plan.Sync, a.Op == plan.Clone:
		source, there := w.sourceCopy(a.From)
		if !there {
			return false
		}
		err = w.fill(a, source)
	default:
		if err = w.fetch(a); err == nil {
			err = w.fill(a, w.newCopy(a.CopyRef().ID, disk.Ready, w.sourceSize(a.CopyRef().ID)))
		}
	}
	w.invalidate()
	w.record(a, err)
	return true
}

// record takes down how an action ended.
func (w *world) record(a plan.Action, err error) {
	w.history = append(w.history, executed{a, w.now, err})
	tries := w.at(a.CopyRef().Disk).tries
	if err != nil {
		tries[a.CopyRef().ID] = job.NextFailure(tries[a.CopyRef().ID], a, err, w.now, 0)
		return
	}
	delete(tries, a.CopyRef().ID)
}

// mayDelete asks the nodes whose copies the deletion counts on, once the copy is withdrawn.
func (w *world) mayDelete(a plan.Action) bool {
	key, d := a.CopyRef(), w.desired(a.Node)
	o := w.cluster().Observe([]plan.Desired{d})[0]
	seen := o.Disks[key.Disk]
	seen.Copies = maps.Clone(seen.Copies)
	c := seen.Copies[key.ID]
	c.Leaving = true
	seen.Copies[key.ID] = c
	o.Disks[key.Disk] = seen
	o.Running[key] = true
	return d.ConfirmDeletion(o, a) == nil
}

// remove deletes a copy. The other nodes hear of it at once, as it may have been theirs
// to count on.
func (w *world) remove(a plan.Action) {
	key := a.CopyRef()
	d, c := w.at(key.Disk), w.cluster()
	d.Space.Free = min(d.Space.Total, d.Space.Free+d.Copies[key.ID].RealSize)
	delete(d.Copies, key.ID)
	delete(d.backedUp, key.ID)
	w.record(a, nil)
	delete(c.Failures, key)
	delete(c.BackedUp, key)
	c.Disks[key.Disk] = d.observe(w.now)
	c.Publish(w.desired(key.Disk.Node))
	w.cachedPlan, w.observed = nil, false
}

// setReady is what reading a copy, or repairing it, comes to.
func (w *world) setReady(key plan.CopyRef) {
	d := w.at(key.Disk)
	c := d.Copies[key.ID]
	c.State, c.Message, c.Owned, c.HasCfg, c.VerifiedAt = disk.Ready, "", true, true, w.now
	sum, short, chunks := w.digests(key.ID)
	if c.SHA512.IsZero() {
		c.SHA512 = sum
	}
	if c.SHA256.IsZero() {
		c.SHA256 = short
	}
	if c.ManifestDigest.IsZero() {
		c.ManifestDigest = chunks
	}
	d.Copies[key.ID] = c
}

// sourceCopy returns the copy that from names, if it is ready and can be reached.
func (w *world) sourceCopy(from plan.CopyRef) (plan.Copy, bool) {
	at, placed := w.places()[from.Disk]
	if !placed {
		return plan.Copy{}, false
	}
	c, there := w.disks[at].Copies[from.ID]
	return c, there && c.State == disk.Ready && w.reachable(from.Disk)
}

// reachable reports whether the disk is there and its node is up.
func (w *world) reachable(ref schema.DiskRef) bool {
	_, down := w.down[ref.Node]
	return !down && w.at(ref).detachedAt.IsZero()
}

// fetch asks the source for the first copy.
func (w *world) fetch(a plan.Action) error {
	s := w.source(a.Image)
	if s.From != nil && !slices.Contains(s.From, a.Node) {
		return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("node %s cannot reach the source", a.Node)}
	}
	return s.Err
}

// fill writes a copy with the bytes of another one.
func (w *world) fill(a plan.Action, source plan.Copy) error {
	key := a.CopyRef()
	image := w.base.Config.Images[a.Image]
	d := w.at(key.Disk)
	before := d.Copies[key.ID]
	free := d.Space.Free + before.RealSize
	reserved := w.base.Config.Nodes[key.Disk.Node].Disks[key.Disk.Disk].StorageReserved
	if room := free - reserved; room < source.RealSize {
		return &disk.NoSpaceError{Need: source.RealSize, Free: max(0, room)}
	}
	c := w.newCopy(key.ID, disk.Ready, source.RealSize)
	if of := image.Source.Clone; a.Op == plan.Sync || of != nil && of.Encryption == schema.EncryptionIgnore {
		c.SHA512, c.SHA256, c.ManifestDigest = source.SHA512, source.SHA256, source.ManifestDigest
	}
	c.LastUsed, c.SurplusSince, c.DamagedAt = before.LastUsed, before.SurplusSince, before.DamagedAt
	d.Space.Free = free - source.RealSize
	d.Copies[key.ID] = c
	return nil
}

// The ways in which a source can fail.
var failures = map[string]error{
	"network":  &fetch.Error{Class: fetch.Network, Err: errors.New("no connection")},
	"refused":  &fetch.Error{Class: fetch.Refused, Err: errors.New("403 Forbidden")},
	"checksum": &disk.ChecksumError{},
	"format":   &fetch.Error{Class: fetch.BadSource, Err: errors.New("it is no image")},
}

// failureNames are the words for the ways in which a source can fail, sorted.
func failureNames() []string { return slices.Sorted(maps.Keys(failures)) }

// newFailure is what a source fails with, in one of the words of Failures. An image without
// a declared checksum cannot have a wrong one.
func (w *world) newFailure(image, word string) (error, error) {
	err, ok := failures[word]
	if !ok {
		return nil, fmt.Errorf("a source does not fail by %q: it is one of %s", word, joinNames(failureNames()))
	}
	if word != "checksum" {
		return err, nil
	}
	want := w.base.Config.Images[image].Checksum
	if want.IsZero() {
		return nil, fmt.Errorf("%s declares no checksum that could be wrong", image)
	}
	h := want.Algorithm().New()
	h.Write([]byte("other bytes"))
	return &disk.ChecksumError{Want: want, Got: want.Algorithm().Digest(h)}, nil
}
