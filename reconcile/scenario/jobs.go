package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/simulation"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// nodeJobs implements system.Jobs. A job takes no time: it ends before Start returns.
type nodeJobs struct{ *node }

// Start implements system.Jobs. It adds the action to the history.
func (j nodeJobs) Start(_ context.Context, o job.Order, on system.Disks, done func(error)) {
	key := o.Action.CopyRef()
	if j.attempts[key]++; j.attempts[key] > maxAttempts {
		j.giveUp()
	}
	err := j.run(o, on)
	j.world.history = append(j.world.history, executed{o.Action, j.world.now, err})
	done(err)
}

// Query implements system.Jobs.
func (j nodeJobs) Query(_ context.Context, a plan.Action, mark string, nodes []peer.Address, done func(map[string]model.Node)) {
	responses := map[string]model.Node{}
	for _, at := range nodes {
		if n := j.world.nodes[at.Node]; n != nil {
			if s, err := n.reconciler.Copies(a.Image, mark); err == nil {
				responses[at.Node] = s
			}
		}
	}
	done(responses)
}

// Prove implements system.Jobs.
func (j nodeJobs) Prove(_ context.Context, _ plan.Action, tasks []system.ProofTask, on system.Disks, done func(map[ident.CopyRef]plan.Proof)) {
	proofs := map[ident.CopyRef]plan.Proof{}
	for _, t := range tasks {
		var local *simulation.Disk
		if t.Local != (ident.CopyRef{}) {
			local = simulation.Opened(on[t.Local.Disk.Disk])
		}
		if j.world.reachable(t.Copy.Disk) {
			proofs[t.Copy] = j.world.at(t.Copy.Disk).Prove(t.Copy.ID, simulation.ProofManifest(t, local))
		}
	}
	done(proofs)
}

// CanExport implements system.Jobs.
func (j nodeJobs) CanExport(e schema.ExportFromVolume, _ system.Disks) error {
	for name, image := range j.world.base.Config.Images {
		from, s := image.Source.ExportFromVolume, j.world.sourceOf(name)
		if from != nil && *from == e && s.nodes != nil && !slices.Contains(s.nodes, j.name) {
			return errors.New("no replica of the volume is on this node")
		}
	}
	return nil
}

// run changes the disks of the node as the job of the order does.
func (j nodeJobs) run(o job.Order, on system.Disks) error {
	w, a, id := j.world, o.Action, o.Action.CopyRef().ID
	d := simulation.Opened(on[a.Disk])
	switch {
	case a.Op.Deletes():
		return disk.RemoveUnused(d.Removal(id, o.Mark.Name))
	case a.Op == model.Backup:
		c := d.Copies[id]
		c.BackupID = plan.BackupRecord(*o.Image.Backup, id, w.contents.Properties(c.Recorded).SHA512)
		return nil
	case a.Op == model.Repair:
		content, err := j.sourceContent(o, on)
		if err != nil {
			return err
		}
		return d.Repair(id, content, w.now)
	case a.VerifiesPeer():
		content, err := j.sourceContent(o, on)
		if err != nil {
			return err
		}
		o.Verified(w.contents.Properties(content).ManifestDigest)
		return nil
	case a.Op.NeedsFile():
		w.contents.computeSHA256(d.Copies[id], o.Image.Checksum)
		return d.Verify(id, w.now)
	}
	content, err := j.newContent(o, on)
	if err != nil {
		return err
	}
	return d.Fill(id, content, o.Digest, o.Reserve, w.now)
}

// newContent returns the content of the copy that an action creates.
func (j nodeJobs) newContent(o job.Order, on system.Disks) (string, error) {
	w, a := j.world, o.Action
	switch a.Op {
	case model.Sync:
		return j.sourceContent(o, on)
	case model.Clone:
		content, err := j.sourceContent(o, on)
		if err != nil || o.Image.Source.Clone.Encryption == schema.EncryptionIgnore {
			return content, err
		}
		return w.contents.of(w.base.Config, o.Image.ID, w.contents.Properties(content).RealSize), nil
	}
	s := w.sourceOf(a.Image)
	if s.nodes != nil && !slices.Contains(s.nodes, a.Node) {
		return "", &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("node %s cannot reach the source", a.Node)}
	}
	if s.err != nil {
		return "", s.err
	}
	if pinned, known := w.contents.WithSHA512(a.Pinned.Digest); known {
		return pinned, nil // the source still has the bytes of the damaged copies
	}
	return w.contents.of(w.base.Config, o.Image.ID, s.size), nil
}

// sourceContent returns the content of the copies that an action reads.
func (j nodeJobs) sourceContent(o job.Order, on system.Disks) (string, error) {
	if from := o.Action.LocalSource; from != (ident.CopyRef{}) {
		if c := simulation.Opened(on[from.Disk.Disk]).Copies[from.ID]; c.Ready() {
			return c.File, nil
		}
		return "", fmt.Errorf("open %s: it is not ready", from)
	}
	for _, local := range o.LocalCopies {
		if c := simulation.Opened(on[local.Disk.Disk]).Copies[local.ID]; c.Ready() {
			return c.File, nil
		}
	}
	for _, p := range o.PeerCopies() {
		ref := ident.DiskRef{Node: p.Node, Disk: p.Disk}
		if c := j.world.at(ref).Copies[p.ID]; j.world.reachable(ref) && c.Ready() {
			return c.File, nil
		}
	}
	return "", &fetch.Error{Class: fetch.Network, Err: errors.New("no node has a ready copy")}
}

// failures are the ways in which a source can fail.
var failures = map[string]error{
	"network":  &fetch.Error{Class: fetch.Network, Err: errors.New("no connection")},
	"refused":  &fetch.Error{Class: fetch.Refused, Err: errors.New("403 Forbidden")},
	"checksum": &disk.ChecksumError{},
	"format":   &fetch.Error{Class: fetch.BadSource, Err: errors.New("not a disk image")},
}

func failureNames() []string { return slices.Sorted(maps.Keys(failures)) }

// newFailure returns the failure of the source of an image by its name. err: no failure has this
// name, or the image declares no checksum, so that a checksum failure is not possible.
func newFailure(c schema.Config, image, name string) (failure, err error) {
	failure, ok := failures[name]
	if !ok {
		return nil, fmt.Errorf("fails=%s is unknown: it must be one of %s", name, joinNames(failureNames()))
	}
	if name != "checksum" {
		return failure, nil
	}
	want := c.Images[image].Checksum
	if want.IsZero() {
		return nil, fmt.Errorf("fails=checksum is not possible: %s declares no checksum", image)
	}
	h := want.Algorithm().New()
	h.Write([]byte("other bytes"))
	return &disk.ChecksumError{Want: want, Got: want.Algorithm().Digest(h)}, nil
}
