package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/clone"
	"github.com/seed-26586806/backing-image-manager/fetch/export"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// export creates the copy from a replica of a volume on this node, as the replica is at the start.
func (j Job) export(ctx context.Context, id ident.ID) error {
	source, err := export.Find(j.Client, j.Disks, ExportRequest(*j.Image.Source.ExportFromVolume))
	if err != nil {
		return err
	}
	want := j.Image.Checksum
	if want.IsZero() {
		want = j.Action.Pinned.Digest
	}
	err = j.fill(ctx, id, want, disk.SignatureCheck{}, source.CanResume, func(part *disk.Part) error {
		return source.Fill(ctx, part, j.Progress)
	})
	if rejected, ok := errors.AsType[*disk.FormatError](err); ok && j.format() == model.Raw {
		// A guest may have written anything to the volume. The hint of the error is for an image file.
		err = &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%s: its bytes cannot be a raw image, because programs would take them for another format (%s): declare exportType: qcow2, a file whose disk has these bytes",
			source, strings.TrimPrefix(rejected.Reason, "declared raw, but "))}
	} else if isA[*disk.ChecksumError](err) {
		err = fmt.Errorf("%s: %w", source, err)
	}
	return err
}

// ExportRequest returns a declared export as a request of package export.
func ExportRequest(e schema.ExportFromVolume) export.Request {
	return export.Request{
		Volume: e.VolumeName, Snapshot: e.SnapshotName, Path: e.Path,
		Format: e.ExportType, Compress: e.Compress,
	}
}

// clone creates the copy from a ready copy of its source image on this node. While its reader
// is open, that copy is not deleted.
func (j Job) clone(ctx context.Context, id ident.ID) error {
	from, r, err := j.openSource()
	if err != nil {
		return err
	}
	defer r.Close()
	c := j.Image.Source.Clone
	var manifest *disk.Manifest
	if c.Encryption != schema.EncryptionIgnore {
		if manifest, err = j.Disks[j.Action.LocalSource.Disk.Disk].Manifest(from.ID); err != nil {
			return err // every ready copy has a manifest, so the manifest cannot be read
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
	case c.Encryption == schema.EncryptionIgnore && want.Algorithm() == ident.SHA512 && want != from.SHA512:
		return &disk.ChecksumError{Want: want, Got: from.SHA512} // the digests show it without a transfer
	}
	return j.fill(ctx, id, want, disk.SignatureCheck{}, request.CanResume, func(part *disk.Part) error {
		return clone.Fill(ctx, part, request, j.Progress)
	})
}

// restore creates the copy from a backup. The bytes must have the declared checksum, or else the
// checksum in the backup.
func (j Job) restore(ctx context.Context, id ident.ID) error {
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
	err = j.fill(ctx, id, want, disk.SignatureCheck{}, r.CanResume, func(part *disk.Part) error { return r.Fill(ctx, part, j.Progress) })
	return fromAddress(backup.URL(store.String(), name), err)
}

// expectedDigest returns the declared digest, else the digest of the backup, else the pinned digest; zero: any. It fails before
// any transfer if the declared digest and the digest of the backup differ.
func (j Job) expectedDigest(b *backup.Backup) (ident.Digest, error) {
	want, has := j.Image.Checksum, b.Digest()
	switch {
	case want.IsZero() && has.IsZero():
		return j.Action.Pinned.Digest, nil
	case want.IsZero():
		return has, nil
	case want.Algorithm() == has.Algorithm() && want != has:
		return ident.Digest{}, &fetch.Error{
			Class: fetch.BadSource,
			Err:   fmt.Errorf("backup %s has checksum %s, declared is %s: declare another backup or checksum", b.Name, has.Short(), want.Short()),
		}
	}
	return want, nil
}

// upload creates the copy from the bytes that a client sends. It runs until the client has sent
// everything, discards the upload, or sends nothing for too long.
func (j Job) upload(ctx context.Context, id ident.ID) error {
	session, err := j.Uploads.Begin(ctx, id, j.Disk.PartSource(id))
	if err != nil {
		return err
	}
	want := cmp.Or(j.Image.Checksum, j.Action.Pinned.Digest, session.Digest)
	if given := session.Digest; !given.IsZero() && given.Algorithm() == want.Algorithm() && given != want {
		err = &disk.ChecksumError{Want: want, Got: given} // the client announced other bytes: no bytes need to be sent
	} else {
		err = j.fill(ctx, id, want, disk.SignatureCheck{}, session.CanResume, func(part *disk.Part) error {
			return session.Fill(ctx, part, j.Image.BandwidthLimit, j.Progress)
		})
	}
	// The client may resume only if the partial file of its session still exists.
	j.Uploads.End(session, err, j.Disk.PartSource(id).ETag == session.ID)
	return err
}

// backup creates the declared backup of the copy, or finds that it exists. If the copy turns out to be
// damaged, or has no chunk manifest, it is verified first. This creates the manifest, or marks the copy
// as failed: then it is repaired before the next attempt.
func (j Job) backup(ctx context.Context, id ident.ID) error {
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
		return j.recordBackup(id)
	case !errors.Is(err, disk.ErrNoManifest) && !errors.Is(err, disk.ErrDamaged):
		return err
	}
	want := disk.Expected{Digest: j.Image.Checksum, Format: model.Format(j.Image.Format)}
	c, verr := j.Disk.Verify(ctx, id, want, func(int64) {})
	switch {
	case verr != nil:
		return errors.Join(err, verr)
	case c.State != model.Ready:
		return fmt.Errorf("back up %s: it is %s: %s", id, c.State, c.Message)
	}
	if err := w.Create(ctx, j.Disk, id, j.Progress); err != nil {
		return err
	}
	return j.recordBackup(id)
}

// recordBackup records that the declared backup of the copy is complete.
func (j Job) recordBackup(id ident.ID) error {
	backup := plan.BackupRecord(*j.Image.Backup, id, j.Disk.Stat(id).SHA512)
	return j.Disk.Update(id, func(r *disk.Record) { r.BackupID = backup })
}
