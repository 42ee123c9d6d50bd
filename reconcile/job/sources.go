package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/clone"
	"github.com/seed-26586806/backing-image-manager/fetch/export"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// export makes the image of a volume that this node has, as it is then.
func (j Job) export(ctx context.Context, id disk.ID) error {
	source, err := export.Find(j.Client, j.Disks, ExportRequest(*j.Image.Source.ExportFromVolume))
	if err != nil {
		return err
	}
	want := j.Image.Checksum
	if want.IsZero() {
		want = j.Action.Pinned.Digest
	}
	return j.fill(ctx, id, want, source.CanResume, func(part *disk.Part) error {
		return source.Fill(ctx, part, j.Progress)
	})
}

func ExportRequest(e schema.ExportFromVolume) export.Request {
	return export.Request{
		Volume: e.VolumeName, Snapshot: e.SnapshotName, Path: e.Path,
		Format: e.ExportType, Compress: e.Compress,
	}
}

// format is what the bytes of the image have to be. A raw disk that a guest wrote the
// header of another format to must not become an image of that format.
func (j Job) format() disk.Format {
	if e := j.Image.Source.ExportFromVolume; e != nil {
		return e.ExportType
	}
	return disk.Format(j.Image.Format)
}

// clone makes the image from a ready copy of its source on this node. As long as the
// copy is read it cannot be removed.
func (j Job) clone(ctx context.Context, id disk.ID) error {
	from, r, err := j.openSource()
	if err != nil {
		return err
	}
	defer r.Close()
	c := j.Image.Source.Clone
	var manifest *disk.Manifest
	if c.Encryption != schema.EncryptionIgnore {
		if manifest, err = j.Source.Manifest(j.Action.LocalSource.ID); err != nil {
			return err // the copy is verified, and has one then
		}
		defer manifest.Close()
	}
	request := clone.Request{
		Source: r, Manifest: manifest, Copy: from, Encryption: clone.Encryption(c.Encryption),
		SecretsDir: j.Client.SecretsDir, Secret: c.Secret,
	}
	want := j.Image.Checksum
	switch {
	case want.IsZero() && c.Encryption == schema.EncryptionIgnore:
		want = from.SHA512
	case want.IsZero():
		want = j.Action.Pinned.Digest
	case c.Encryption == schema.EncryptionIgnore && want.Algorithm() == disk.SHA512 && want != from.SHA512:
		return &disk.ChecksumError{Want: want, Got: from.SHA512} // no need to read it
	}
	return j.fill(ctx, id, want, request.CanResume, func(part *disk.Part) error {
		return clone.Fill(ctx, part, request, j.Progress)
	})
}

// openSource opens the copy that the action reads, and tells what it is. A look that fails
// for a moment knows no checksum, and without one any bytes would do.
func (j Job) openSource() (disk.Copy, *disk.Reader, error) {
	from := j.Source.Stat(j.Action.LocalSource.ID)
	if from.State != disk.Ready {
		return from, nil, fmt.Errorf("open %s: it is %s: %s", from.ID, from.State, from.Message)
	}
	r, err := j.Source.Open(from.ID)
	return from, r, err
}

// restore makes the first copy of a backup. The bytes have to be those that are
// declared, or those that the backup says it is of.
func (j Job) restore(ctx context.Context, id disk.ID) error {
	declared := j.Image.Source.Restore
	target, name, err := backup.ParseURL(declared.BackupURL)
	if err != nil {
		return &fetch.Error{Class: fetch.BadSource, Err: err}
	}
	store, err := backup.Open(j.Client, target, declared.Credentials)
	if err != nil {
		return err
	}
	defer store.Close()
	b, err := backup.LoadComplete(ctx, store, name)
	if err != nil {
		return err
	}
	want, err := j.expectedDigest(b)
	if err != nil {
		return err
	}
	r := backup.Restore{Store: store, Backup: b, Workers: declared.ConcurrentLimit, BandwidthLimit: j.Image.BandwidthLimit, Memory: j.Restores}
	return j.fill(ctx, id, want, r.CanResume, func(part *disk.Part) error { return r.Fill(ctx, part, j.Progress) })
}

// expectedDigest is what the bytes of a backup have to be. What is declared of them can be
// told to be something else before any of them is read.
func (j Job) expectedDigest(b *backup.Backup) (disk.Digest, error) {
	want, has := j.Image.Checksum, b.Digest()
	switch {
	case want.IsZero() && has.IsZero():
		return j.Action.Pinned.Digest, nil
	case want.IsZero():
		return has, nil
	case want.Algorithm() == has.Algorithm() && want != has:
		return disk.Digest{}, &fetch.Error{
			Class: fetch.BadSource,
			Err:   fmt.Errorf("backup %s is of other bytes: it has checksum %s, declared is %s", b.Name, has.Short(), want.Short()),
		}
	}
	return want, nil
}

// upload puts into a part what a client sends, for as long as that takes.
func (j Job) upload(ctx context.Context, id disk.ID) error {
	session, err := j.Uploads.Begin(ctx, id, j.Disk.PartSource(id))
	if err != nil {
		return err
	}
	want := cmp.Or(j.Image.Checksum, j.Action.Pinned.Digest, session.Digest)
	if given := session.Digest; !given.IsZero() && given.Algorithm() == want.Algorithm() && given != want {
		err = &disk.ChecksumError{Want: want, Got: given} // nobody has to send it to know that
	} else {
		err = j.fill(ctx, id, want, session.CanResume, func(part *disk.Part) error {
			return session.Fill(ctx, part, j.Image.BandwidthLimit, j.Progress)
		})
	}
	j.Uploads.End(session, err, j.Disk.PartSource(id).ETag == session.ID)
	return err
}

// backup brings the copy to where its backup is declared to be kept, or finds it
// there. A copy that turns out to be damaged, or to have nothing that it can be held
// against, is verified: then it has, or is repaired before it comes here again.
func (j Job) backup(ctx context.Context, id disk.ID) error {
	declared := j.Image.Backup
	store, err := backup.Open(j.Client, declared.Target, declared.Credentials)
	if err != nil {
		return err
	}
	defer store.Close()
	w := backup.Creator{Store: store, Compression: backup.Compression(declared.Compression), Workers: declared.ConcurrentLimit}
	err = w.Create(ctx, j.Disk, id, j.Progress)
	switch {
	case err == nil:
		return j.backedUp(id)
	case !errors.Is(err, disk.ErrNoManifest) && !errors.Is(err, disk.ErrDamaged):
		return err
	}
	want := disk.Expected{Digest: j.Image.Checksum, Format: disk.Format(j.Image.Format)}
	c, verr := j.Disk.Verify(ctx, id, want, func(int64) {})
	switch {
	case verr != nil:
		return errors.Join(err, verr)
	case c.State != disk.Ready:
		return fmt.Errorf("back up %s: it is %s: %s", id, c.State, c.Message)
	}
	if err := w.Create(ctx, j.Disk, id, j.Progress); err != nil {
		return err
	}
	return j.backedUp(id)
}

// backedUp notes that the backup is whole.
func (j Job) backedUp(id disk.ID) error {
	mark := plan.BackupRecord(*j.Image.Backup, id, j.Disk.Stat(id).SHA512)
	return j.Disk.Update(id, func(r *disk.Record) { r.BackupID = mark })
}
