// Package job executes one action of a plan: it downloads, exports, restores, clones, receives an
// upload, syncs, verifies, repairs or backs up a copy. It does not delete copies: package reconcile
// does (delete.go).
//
// A job writes a new copy to a partial file and commits it when its digest is right (Job.fill), so that no job leaves a
// wrong copy. Within one attempt it resumes after a dropped connection, and tries other addresses and copies. It never
// waits for the next attempt: it returns an error, and NextFailure decides when the planner may try again.
//
// Reading order: job.go has Order, Job and the way of every new copy; download.go, sources.go and sync.go
// have the sources; repair.go verifies and repairs; possession.go verifies a copy on another node;
// failure.go classifies errors.
package job

import (
	"context"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Order is an action of a plan, with what a job must know to execute it. It does not change while the
// job runs, except the result of PeerCopies and the counters of Progress.
type Order struct {
	Action   plan.Action
	Image    schema.Image // zero if the image is not declared
	Private  bool         // other users of the system must not read the copy: see schema.Config.IsPrivate
	Reserve  int64        // bytes that must stay free on the disk
	Progress *fetch.Progress
	// AllowLoopback: see schema.Settings.AllowLoopbackSources.
	AllowLoopback bool
	// Digest is the digest of the bytes that other nodes may send; zero: they may send nothing.
	Digest ident.Digest
	// Mark is the mark of a withdrawn copy: it must still be in the folder when the copy is deleted. Zero: the copy has none.
	Mark disk.Mark
	// Counted is for the deletion of a copy that could get no mark: the copies of this node on which the deletion counts.
	Counted []ident.CopyRef
	// PeerCopies returns the copies with Digest that other nodes offer now.
	PeerCopies func() []peer.Source
	// Verified is called after an action with VerifiesPeer has read the bytes with Digest. It receives
	// the digest of each chunk manifest that these bytes may have.
	Verified func(manifest ident.Digest)
	// LocalCopies are copies on this node with the same bytes, for a repair. Seeds are copies on this node that may have
	// some of the bytes, for a sync from peers and a download by an index.
	LocalCopies, Seeds []ident.CopyRef
	// Damaged is called with a seed whose bytes do not match its manifest: the seed must be verified. Any
	// goroutine may call Damaged, and it does not block.
	Damaged func(ident.CopyRef)
}

// Job is an Order with the open disks and the clients that execute it.
type Job struct {
	Order
	Disk   *disk.Disk            // of the copy
	Disks  map[string]*disk.Disk // the usable disks of this node by name
	Client *fetch.Client
	Peers  *peer.Client // nil: this node queries no peers
	Warn   func(error)  // receives an error for each source with wrong bytes
	// Survey receives what a download by an index costs. WarnIndex receives why the whole file is downloaded.
	Survey    func(assemble.Survey)
	WarnIndex func(error)
	WarnKeys  func(text string) // receives what is wrong with a folder of keys that is still usable
	Uploads   *upload.Sessions
	Restores  *backup.MemoryBudget
}

// Transfer is a running job, as status and metrics show it.
type Transfer struct {
	Action   plan.Action
	Progress *fetch.Progress
}

// Run executes the action, and returns nil if it succeeded. When ctx ends it returns an error
// soon, and keeps the bytes that were transferred for the next job.
func (j Job) Run(ctx context.Context) error {
	id := j.Action.CopyRef().ID
	switch j.Action.Op {
	case model.Download:
		return j.download(ctx, id)
	case model.Export:
		return j.export(ctx, id)
	case model.Sync:
		if j.Action.LocalSource == (ident.CopyRef{}) {
			return j.syncFromPeers(ctx, id)
		}
		return j.syncLocal(ctx, id)
	case model.Restore:
		return j.restore(ctx, id)
	case model.Backup:
		return j.backup(ctx, id)
	case model.Clone:
		return j.clone(ctx, id)
	case model.Repair:
		return j.repair(ctx, id)
	case model.Upload:
		return j.upload(ctx, id)
	case model.Adopt, model.Verify:
		if j.Action.VerifiesPeer() {
			return j.verifyPeer(ctx)
		}
		return j.verify(ctx, id)
	}
	panic("job: no job executes the action " + string(j.Action.Op))
}

// fill creates the copy with this id: it opens the partial file, lets transfer write to it, and commits it if its digest is
// want and check accepts the bytes. A zero want accepts any digest. If canResume accepts the source of an earlier partial
// file, fill resumes that file. If not, it reads nothing of that file, and transfer replaces it.
func (j Job) fill(ctx context.Context, id ident.ID, want ident.Digest, check disk.SignatureCheck, canResume func(disk.PartSource) bool, transfer func(*disk.Part) error) error {
	part, err := j.Disk.OpenPart(ctx, id, disk.PartOptions{
		Reserve: j.Reserve,
		MaxSize: j.maxSize(),
		SHA256:  want.Algorithm() == ident.SHA256 || j.Image.Checksum.Algorithm() == ident.SHA256,
		Format:  j.format(),
		Private: j.Private,
		Accept:  canResume,
		Check:   check,
	})
	if err != nil {
		return err
	}
	if err := transfer(part); err != nil {
		// Bytes that cannot be right are of no use, and on a full disk the partial file would take
		// the space of other copies. A file without bytes stays only if it has an index, or if the
		// job was stopped: then a later job resumes it.
		isEmpty := part.Offset() == 0 && part.Source().Index == ""
		if classify(err, 0, 0).final || errors.Is(err, disk.ErrNoSpace) || isEmpty && ctx.Err() == nil {
			return errors.Join(err, part.Discard())
		}
		return errors.Join(err, part.Close())
	}
	_, err = part.Commit(want)
	return err
}

// maxSize returns the largest size of the image in bytes, 0: no limit is declared.
func (j Job) maxSize() int64 {
	if d := j.Image.Source.Download; d != nil {
		return d.MaxSize
	}
	return 0
}

// format returns the format that the bytes of the image must have, "": any. The format of an
// export is always known: a guest may write the header of another format to its raw disk, which
// must not become an image of that format.
func (j Job) format() model.Format {
	if e := j.Image.Source.ExportFromVolume; e != nil {
		return e.ExportType
	}
	return model.Format(j.Image.Format)
}
