package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// store writes the image to a disk that no daemon holds.
func (u *uploading) store(ctx context.Context, o upload.Order) (err error) {
	result, err := load(ctx, u.err, u.configDir)
	if err != nil {
		return err
	}
	image, declared := result.Config.Images[u.name]
	switch {
	case !declared:
		printProblems(u.err, u.configDir, result)
		return fmt.Errorf("no image %s is declared in %s", u.name, u.configDir)
	case image.Suspend.Holds(time.Now()), result.Config.Settings.Suspend.Holds(time.Now()):
		return fmt.Errorf("%s is suspended in %s: nothing is begun", u.name, u.configDir)
	case image.Source.Upload == nil:
		return fmt.Errorf("%s is not for upload: its source is %s", u.name, image.Source.Kind())
	case !image.Checksum.IsZero() && !o.Digest.IsZero() && image.Checksum != o.Digest:
		return fmt.Errorf("--checksum is %s, declared is %s", o.Digest, image.Checksum)
	case !image.Checksum.IsZero():
		o.Digest = image.Checksum
	}
	shelves, err := openShelves(u.disks)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeShelves(shelves)) }()
	on := shelves[0]
	unlock, err := on.Lock()
	if err != nil {
		return err
	}
	defer func() { _ = unlock() }() // the end of the process unlocks as well
	switch c := on.Look(image.ID); c.State {
	case disk.Ready:
		refusal := fmt.Errorf("%s is ready on %s: another file needs another checksum, uuid or name", image.ID, on.Path())
		return u.isThere(ctx, o.Content, c.SHA512, refusal)
	case disk.Unknown: // it would not be replaced
		return fmt.Errorf("a file of %s is on %s already, of which nobody knows what it is worth (%s): run reconcile, which looks at it", image.ID, on.Path(), c.Message)
	}
	made, err := u.fill(ctx, on, o, disk.PartOptions{
		SHA256: o.Digest.Algorithm() == disk.SHA256, Format: disk.Format(image.Format), Reserve: reserved(result.Config.Nodes, on.Path()),
		Takes: o.Takes,
	}, image.ID)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(u.out, "%s on %s is ready: sha512 %s\n", made.ID, on.Path(), made.SHA512)
	return err
}

func (u *uploading) fill(ctx context.Context, on shelf, o upload.Order, options disk.PartOptions, id disk.ID) (disk.Copy, error) {
	part, err := on.OpenPart(ctx, id, options)
	if err != nil {
		return disk.Copy{}, err
	}
	counted := &fetch.Progress{}
	if f, ok := o.Content.(*upload.File); ok {
		counted.Total.Store(f.Size())
	}
	stop := newProgress(u.err).follow(oneTransfer(reconcile.Upload, id, on.Path(), counted))
	err = upload.Store(ctx, part, o, counted)
	stop()
	_, final := errors.AsType[*fetch.Error](err)
	_, again := o.Content.(*upload.File)
	switch {
	case err == nil:
		return part.Commit(o.Digest)
	case final || !again:
		return disk.Copy{}, errors.Join(err, part.Discard())
	case ctx.Err() != nil:
		err = errors.New("stopped; " + rest(o.Content))
	}
	return disk.Copy{}, errors.Join(err, part.Close())
}

// reserved is what has to stay free on a disk at the path, if it is declared.
func reserved(nodes map[string]schema.Node, path string) (bytes int64) {
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	for _, node := range nodes {
		for _, d := range node.Disks {
			if d.Path == path {
				bytes = max(bytes, d.StorageReserved)
			}
		}
	}
	return bytes
}
