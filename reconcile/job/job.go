package job

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Job is one action of a plan, ready to be done: with everything it needs, so that
// it depends on nothing that changes while it runs.
type Job struct {
	Action      plan.Action
	Image       schema.Image // zero for what is not declared any more
	Reserve     int64        // bytes that must stay free on the disk
	Client      *fetch.Client
	Disk        *disk.Disk
	Source      *disk.Disk            // of a sync on this node
	Disks       map[string]*disk.Disk // of this node by name, for an export
	LocalCopies []LocalCopy           // of the same bytes, for a repair
	Peers       PeerCopies
	Uploads     *upload.Sessions
	Restores    *backup.MemoryBudget
	Progress    *fetch.Progress
}

// Run does the work. It returns the error of ctx when it was told to stop; what
// was transferred is then kept for the next time.
func (j Job) Run(ctx context.Context) error {
	id := j.Action.CopyRef().ID
	switch j.Action.Op {
	case plan.Download:
		return j.download(ctx, id)
	case plan.Export:
		return j.export(ctx, id)
	case plan.Sync:
		if j.Source == nil {
			return j.syncFromPeers(ctx, id)
		}
		return j.syncLocal(ctx, id)
	case plan.Restore:
		return j.restore(ctx, id)
	case plan.Backup:
		return j.backup(ctx, id)
	case plan.Clone:
		return j.clone(ctx, id)
	case plan.Repair:
		return j.repair(ctx, id)
	case plan.Upload:
		return j.upload(ctx, id)
	case plan.Adopt, plan.Verify:
		return j.verify(ctx, id)
	}
	panic("reconcile: nothing to do for action " + string(j.Action.Op))
}

func (j Job) download(ctx context.Context, id disk.ID) error {
	r := j.request()
	if r.Digest.IsZero() && r.ChecksumURL != "" {
		if err := j.lookUpChecksum(ctx, &r); err != nil {
			return err
		}
	}
	if r.Digest.IsZero() {
		r.Digest = j.Action.Pinned.Digest
	}
	return j.downloadVerified(ctx, id, r)
}

// request is for the image's source, as it is declared.
func (j Job) request() fetch.Request {
	d := j.Image.Source.Download
	return fetch.Request{
		URL: d.URL, Mirrors: d.Mirrors, Credentials: d.Credentials, ChecksumURL: d.ChecksumURL,
		Digest: j.Image.Checksum, PackedDigest: d.PackedChecksum, Unpack: string(d.Unpack),
		MaxSize: d.MaxSize, BandwidthLimit: j.Image.BandwidthLimit,
	}
}

// downloadVerified asks again where the bytes were wrong and others can be had: for
// the whole, if they came in pieces, of which one may have been of another version,
// and then of the addresses that were not asked yet. The error of the last try
// decides when to come back.
func (j Job) downloadVerified(ctx context.Context, id disk.ID, r fetch.Request) error {
	var wrong error
	for {
		err := j.downloadOnce(ctx, id, r)
		if err == nil {
			return nil
		}
		asked := int(j.Progress.AddressIndex.Load())
		bad := isA[*disk.ChecksumError](err) || isA[*disk.FormatError](err)
		if bad && len(r.Mirrors) > 0 {
			err = fmt.Errorf("address %d of %d: %w", asked+1, len(r.Mirrors)+1, err)
		}
		switch {
		case bad && j.Progress.Joined.Load() && !r.Restart:
		case bad && asked < len(r.Mirrors):
			wrong, r.SkipAddresses = errors.Join(err, wrong), asked+1
		default:
			return errors.Join(err, wrong)
		}
		r.Restart = true
	}
}

func (j Job) downloadOnce(ctx context.Context, id disk.ID, r fetch.Request) error {
	return j.fill(ctx, id, r.Digest, r.CanResume, func(part *disk.Part) error {
		return j.Client.Download(ctx, r, part, j.Progress)
	})
}

// fill makes the part of id with what transfer puts into it, and commits it. A part
// that finds no space, or bytes that cannot be right, is not kept, nor one with nothing
// in it. What takes does not know is not even read back.
func (j Job) fill(ctx context.Context, id disk.ID, want disk.Digest, takes func(disk.PartSource) bool, transfer func(*disk.Part) error) error {
	part, err := j.Disk.OpenPart(ctx, id, disk.PartOptions{
		Reserve: j.Reserve,
		MaxSize: j.maxSize(),
		SHA256:  want.Algorithm() == disk.SHA256 || j.Image.Checksum.Algorithm() == disk.SHA256,
		Format:  j.format(),
		Accept:  takes,
	})
	if err != nil {
		return err
	}
	if err := transfer(part); err != nil {
		_, final, _ := classify(err, 0, 0)
		if final || errors.Is(err, disk.ErrNoSpace) || part.Offset() == 0 && ctx.Err() == nil {
			return errors.Join(err, part.Discard())
		}
		return errors.Join(err, part.Close())
	}
	_, err = part.Commit(want)
	return err
}

func (j Job) maxSize() int64 {
	if d := j.Image.Source.Download; d != nil {
		return d.MaxSize
	}
	return 0
}

// ctxReader reads a local source until ctx ends, and counts the bytes.
type ctxReader struct {
	ctx      context.Context
	r        io.Reader
	progress *fetch.Progress
}

func (s *ctxReader) Read(b []byte) (int, error) {
	if err := s.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := s.r.Read(b)
	s.progress.Done.Add(int64(n))
	if errors.Is(err, unix.EIO) { // whose fault it is, is not to be seen in the number alone
		err = fmt.Errorf("the source %w: %w", disk.ErrDamaged, err)
	}
	return n, err
}

func (j Job) verify(ctx context.Context, id disk.ID) error {
	if j.Disk.Stat(id).State == disk.Ready && j.Action.Op == plan.Adopt {
		return j.Disk.WriteCfg(id, j.Image.Checksum)
	}
	j.Progress.Total.Store(j.Action.Bytes)
	pace := rate.NewLimiter(rate.Inf, 0)
	if j.Action.Scrub {
		pace = rate.NewLimiter(plan.ScrubRate, plan.ScrubRate)
	}
	_, err := j.Disk.Verify(ctx, id, disk.Expected{Digest: j.Image.Checksum, Format: disk.Format(j.Image.Format)},
		func(n int64) {
			j.Progress.Done.Add(n)
			_ = pace.WaitN(ctx, int(n)) // fails when ctx ends, which Verify sees for itself
		})
	if disk.IsMediaError(err) && j.Disk.Stat(id).State == disk.Ready {
		return j.rewriteUnreadable(ctx, id, err)
	}
	return err
}

// lookUpChecksum asks the address of a SUMS file what the image has to be, as it
// is stored or as it is packed.
func (j Job) lookUpChecksum(ctx context.Context, r *fetch.Request) error {
	stored, packed, err := j.Client.LookUpChecksum(ctx, *r)
	if err != nil {
		return fmt.Errorf("look up checksum: %w", err)
	}
	r.Digest = stored
	if r.PackedDigest.IsZero() {
		r.PackedDigest = packed
	}
	return nil
}

// Transfer is an action under way.
type Transfer struct {
	Action   plan.Action
	Progress *fetch.Progress
	Started  time.Time
}
