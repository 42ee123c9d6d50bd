package reconcile

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Task is an action with everything that its execution needs. It does not change while the job
// runs.
type Task struct {
	Action        plan.Action
	Image         schema.Image // zero if the image is not declared
	Private       bool         // see schema.Config.IsPrivate
	Reserve       int64        // bytes that must stay free on the disk
	AllowLoopback bool         // see schema.Settings.AllowLoopbackSources
	Progress      *fetch.Progress

	// RecoveryInterval is Settings.RecoveryWaitInterval.
	RecoveryInterval time.Duration

	Disk        Disk            // of the copy
	Source      Disk            // of Action.LocalSource; nil without one
	Disks       map[string]Disk // the usable disks of this node by name, for an export
	LocalCopies []LocalCopy     // copies on this node with the same bytes, for a repair
	// Digest is the digest of the bytes that peers may send; zero: none may.
	Digest disk.Digest
	// PeerCopies returns the copies with Digest that peers offer now.
	PeerCopies func() []peer.Source
	// Verified receives the digest of the chunk manifest of the bytes with Digest, after an action
	// for which VerifiesPeer is true has read them.
	Verified func(manifest disk.Digest)
}

// LocalCopy is a copy on a disk of this node.
type LocalCopy struct {
	Disk Disk
	ID   disk.ID
}

// newTask returns the task of an action.
func (r *Reconciler) newTask(d plan.Desired, o plan.Observed, a plan.Action) Task {
	declared, _ := d.Disk(a.CopyRef().Disk)
	t := Task{
		Action: a, Image: d.Config.Images[a.Image], Private: d.Config.IsPrivate(a.Image), Reserve: declared.StorageReserved,
		AllowLoopback: d.Config.Settings.AllowLoopbackSources, RecoveryInterval: d.Config.Settings.RecoveryWaitInterval, Progress: &fetch.Progress{},
		Disk: r.disks.open[a.CopyRef().Disk].handle, LocalCopies: r.disks.localCopies(d, o, a),
	}
	t.Progress.Total.Store(a.Bytes)
	t.Digest, t.PeerCopies = r.peers.copiesFor(d, o, a)
	t.Verified = func(manifest disk.Digest) { r.peers.claims.addManifest(manifest, t.Digest) }
	if (a.Op == plan.Sync || a.Op == plan.Clone) && a.LocalSource != (plan.CopyRef{}) {
		t.Source = r.disks.open[a.LocalSource.Disk].handle
	}
	if a.Op == plan.Export {
		t.Disks = r.disks.usable()
	}
	return t
}
