package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
)

// backup brings the copy to where its backup is declared to be kept, or finds it
// there. A copy that turns out to be damaged, or to have nothing that it can be held
// against, is verified: then it has, or is repaired before it comes here again.
func (j job) backup(ctx context.Context, id disk.ID) error {
	declared := j.image.Backup
	store, err := backup.Open(j.client, declared.Target, declared.Credentials)
	if err != nil {
		return err
	}
	defer store.Close()
	w := backup.Creator{Store: store, Compression: backup.Compression(declared.Compression), Workers: declared.ConcurrentLimit}
	err = w.Create(ctx, j.disk, id, j.progress)
	switch {
	case err == nil:
		return j.backedUp(id)
	case !errors.Is(err, disk.ErrNoManifest) && !errors.Is(err, disk.ErrDamaged):
		return err
	}
	want := disk.Expected{Digest: j.image.Checksum, Format: disk.Format(j.image.Format)}
	c, verr := j.disk.Verify(ctx, id, want, func(int64) {})
	switch {
	case verr != nil:
		return errors.Join(err, verr)
	case c.State != disk.Ready:
		return fmt.Errorf("back up %s: it is %s: %s", id, c.State, c.Message)
	}
	if err := w.Create(ctx, j.disk, id, j.progress); err != nil {
		return err
	}
	return j.backedUp(id)
}

// backedUp notes that the backup is whole.
func (j job) backedUp(id disk.ID) error {
	mark := backupMark(*j.image.Backup, id, j.disk.Stat(id).SHA512)
	return j.disk.Update(id, func(r *disk.Record) { r.BackupID = mark })
}
