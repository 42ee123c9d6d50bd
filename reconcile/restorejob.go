package reconcile

import (
	"context"
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
)

// restore makes the first copy of a backup. The bytes have to be those that are
// declared, or those that the backup says it is of.
func (j job) restore(ctx context.Context, id disk.ID) error {
	declared := j.image.Source.Restore
	target, name, err := backup.ParseURL(declared.BackupURL)
	if err != nil {
		return &fetch.Error{Class: fetch.BadSource, Err: err}
	}
	store, err := backup.Open(j.client, target, declared.Credentials)
	if err != nil {
		return err
	}
	defer store.Close()
	b, err := backup.LoadComplete(ctx, store, name)
	if err != nil {
		return err
	}
	want, err := j.wantOf(b)
	if err != nil {
		return err
	}
	r := backup.Restore{Store: store, Backup: b, Workers: declared.ConcurrentLimit, BandwidthLimit: j.image.BandwidthLimit, Memory: j.restores}
	return j.fill(ctx, id, want, r.CanResume, func(part *disk.Part) error { return r.Fill(ctx, part, j.progress) })
}

// wantOf is what the bytes of a backup have to be. What is declared of them can be
// told to be something else before any of them is read.
func (j job) wantOf(b *backup.Backup) (disk.Digest, error) {
	want, has := j.image.Checksum, b.Digest()
	switch {
	case want.IsZero() && has.IsZero():
		return j.action.recall.digest, nil
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
