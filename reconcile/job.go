package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// job is one action of a plan, ready to be done: with everything it needs, so that
// it depends on nothing that changes while it runs.
type job struct {
	action   Action
	image    schema.Image // zero for what is not declared any more
	reserve  int64        // bytes that must stay free on the disk
	client   *fetch.Client
	disk     *disk.Disk
	source   *disk.Disk            // of a sync on this node
	disks    map[string]*disk.Disk // of this node by name, for an export
	near     []nearCopy            // of the same bytes, for a repair
	far      far
	asking   asking // of a deletion
	uploads  *upload.Sessions
	restores *backup.MemoryBudget
	progress *fetch.Progress
}

// run does the work. It returns the error of ctx when it was told to stop; what
// was transferred is then kept for the next time.
func (j job) run(ctx context.Context) error {
	id := j.action.Key().ID
	switch j.action.Kind {
	case Download:
		return j.download(ctx, id)
	case Export:
		return j.export(ctx, id)
	case Sync:
		if j.source == nil {
			return j.pull(ctx, id)
		}
		return j.sync(ctx, id)
	case Restore:
		return j.restore(ctx, id)
	case Backup:
		return j.backup(ctx, id)
	case Clone:
		return j.clone(ctx, id)
	case Repair:
		return j.repair(ctx, id)
	case Upload:
		return j.upload(ctx, id)
	case Adopt, Verify:
		return j.verify(ctx, id)
	}
	panic("reconcile: nothing to do for action " + string(j.action.Kind))
}

func (j job) download(ctx context.Context, id disk.ID) error {
	r := j.request()
	if r.Digest.IsZero() && r.ChecksumURL != "" {
		if err := j.lookUpChecksum(ctx, &r); err != nil {
			return err
		}
	}
	if r.Digest.IsZero() {
		r.Digest = j.action.recall.digest
	}
	return j.downloadRight(ctx, id, r)
}

// request is for the image's source, as it is declared.
func (j job) request() fetch.Request {
	d := j.image.Source.Download
	return fetch.Request{
		URL: d.URL, Mirrors: d.Mirrors, Credentials: d.Credentials, ChecksumURL: d.ChecksumURL,
		Digest: j.image.Checksum, PackedDigest: d.PackedChecksum, Unpack: string(d.Unpack),
		MaxSize: d.MaxSize, BandwidthLimit: j.image.BandwidthLimit,
	}
}

// downloadRight asks again where the bytes were wrong and others can be had: for
// the whole, if they came in pieces, of which one may have been of another version,
// and then of the addresses that were not asked yet. The error of the last try
// decides when to come back.
func (j job) downloadRight(ctx context.Context, id disk.ID, r fetch.Request) error {
	var wrong error
	for {
		err := j.downloadTo(ctx, id, r)
		if err == nil {
			return nil
		}
		asked := int(j.progress.AddressIndex.Load())
		bad := isA[*disk.ChecksumError](err) || isA[*disk.FormatError](err)
		if bad && len(r.Mirrors) > 0 {
			err = fmt.Errorf("address %d of %d: %w", asked+1, len(r.Mirrors)+1, err)
		}
		switch {
		case bad && j.progress.Joined.Load() && !r.Restart:
		case bad && asked < len(r.Mirrors):
			wrong, r.SkipAddresses = errors.Join(err, wrong), asked+1
		default:
			return errors.Join(err, wrong)
		}
		r.Restart = true
	}
}

func (j job) downloadTo(ctx context.Context, id disk.ID, r fetch.Request) error {
	return j.fill(ctx, id, r.Digest, r.CanResume, func(part *disk.Part) error {
		return j.client.Download(ctx, r, part, j.progress)
	})
}

// fill makes the part of id with what transfer puts into it, and commits it. A part
// that finds no space, or bytes that cannot be right, is not kept, nor one with nothing
// in it. What takes does not know is not even read back.
func (j job) fill(ctx context.Context, id disk.ID, want disk.Digest, takes func(disk.PartSource) bool, transfer func(*disk.Part) error) error {
	part, err := j.disk.OpenPart(ctx, id, disk.PartOptions{
		Reserve: j.reserve,
		MaxSize: j.maxSize(),
		SHA256:  want.Algorithm() == disk.SHA256 || j.image.Checksum.Algorithm() == disk.SHA256,
		Format:  j.format(),
		Accept:  takes,
	})
	if err != nil {
		return err
	}
	if err := transfer(part); err != nil {
		_, final, _ := judge(err, 0, 0)
		if final || errors.Is(err, disk.ErrNoSpace) || part.Offset() == 0 && ctx.Err() == nil {
			return errors.Join(err, part.Discard())
		}
		return errors.Join(err, part.Close())
	}
	_, err = part.Commit(want)
	return err
}

func (j job) maxSize() int64 {
	if d := j.image.Source.Download; d != nil {
		return d.MaxSize
	}
	return 0
}

// sync copies a ready image from another disk or folder of this node. It is read
// as any source is: hashed on the way and compared at the end.
func (j job) sync(ctx context.Context, id disk.ID) error {
	from, r, err := j.openFrom()
	if err != nil {
		return err
	}
	defer r.Close()
	j.progress.Total.Store(from.Size)
	origin := disk.CopySource(from)
	takes := func(o disk.PartSource) bool { return o == origin }
	return j.fill(ctx, id, from.SHA512, takes, func(part *disk.Part) error {
		if part.Source() != origin {
			if err := part.Begin(origin); err != nil {
				return err
			}
		}
		if _, err := r.Seek(part.Offset(), io.SeekStart); err != nil {
			return err
		}
		j.progress.Done.Store(part.Offset())
		_, err := part.ReadFrom(&stoppable{ctx: ctx, r: r, progress: j.progress})
		return errors.Join(err, r.Unchanged())
	})
}

// stoppable ends a long reading when ctx does, and counts it.
type stoppable struct {
	ctx      context.Context
	r        io.Reader
	progress *fetch.Progress
}

func (s *stoppable) Read(b []byte) (int, error) {
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

func (j job) verify(ctx context.Context, id disk.ID) error {
	if j.disk.Stat(id).State == disk.Ready && j.action.Kind == Adopt {
		return j.disk.WriteCfg(id, j.image.Checksum)
	}
	j.progress.Total.Store(j.action.Bytes)
	pace := rate.NewLimiter(rate.Inf, 0)
	if j.action.slow {
		pace = rate.NewLimiter(scrubRate, scrubRate)
	}
	_, err := j.disk.Verify(ctx, id, disk.Expected{Digest: j.image.Checksum, Format: disk.Format(j.image.Format)},
		func(n int64) {
			j.progress.Done.Add(n)
			_ = pace.WaitN(ctx, int(n)) // fails when ctx ends, which Verify sees for itself
		})
	if disk.IsMediaError(err) && j.disk.Stat(id).State == disk.Ready {
		return j.mend(ctx, id, err)
	}
	return err
}

// lookUpChecksum asks the address of a SUMS file what the image has to be, as it
// is stored or as it is packed.
func (j job) lookUpChecksum(ctx context.Context, r *fetch.Request) error {
	stored, packed, err := j.client.LookUpChecksum(ctx, *r)
	if err != nil {
		return fmt.Errorf("look up checksum: %w", err)
	}
	r.Digest = stored
	if r.PackedDigest.IsZero() {
		r.PackedDigest = packed
	}
	return nil
}
