package backup

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Write says where images are backed up to, and how.
type Write struct {
	Store       Store
	Compression Compression
	Workers     int               // blocks that are stored at once; 0: DefaultWorkers
	Labels      map[string]string // kept with the backup
}

// Backup stores the ready copy id of d under its name. Blocks that the Store has
// are not stored again, but for those that are found bad. A backup of the same bytes
// that is there is left as it is; one that was not completed is completed; one of
// other bytes is refused. What is read is held against the copy's manifest: disk.ErrNoManifest and disk.ErrDamaged say that
// the copy has to be verified first. Cancelled or killed, it leaves blocks and a cfg that says
// that it is not complete, and the next Backup of the image goes on from there.
func (w Write) Backup(ctx context.Context, d *disk.Disk, id disk.ID, progress *fetch.Progress) error {
	im, err := openImage(d, id)
	if err != nil {
		return err
	}
	defer im.close()
	progress.Total.Store(im.Copy.Size)
	if b, err := w.there(ctx, im.Copy); err != nil || b.Complete() {
		progress.Done.Store(im.Copy.Size)
		return err
	}
	return withLock(ctx, w.Store, shared, func(ctx context.Context, l *lock) error {
		b, err := w.there(ctx, im.Copy)
		if err != nil || b.Complete() {
			return err
		}
		if err := w.save(ctx, b); err != nil {
			return err
		}
		if b.Blocks, err = w.store(ctx, im, progress); err != nil {
			return err
		}
		if err := im.Unchanged(); err != nil {
			return err
		}
		// Others may hold the same lock, and have begun at the same moment.
		if now, err := w.there(ctx, im.Copy); err != nil || now.Complete() {
			return err
		}
		// Without the lock, somebody may have removed blocks that are not in any cfg yet.
		if err := l.confirm(ctx); err != nil {
			return err
		}
		b.Completed = time.Now()
		return w.save(ctx, b)
	})
}

// there returns the backup that is to be made: as it is in the Store, complete or
// not, or a new one.
func (w Write) there(ctx context.Context, c disk.Copy) (*Backup, error) {
	want := &Backup{
		Name: c.ID.Name, Size: c.Size, Checksum: c.SHA512.String(), Labels: w.Labels, Compression: w.Compression,
		Created: time.Now(),
	}
	have, err := Inspect(ctx, w.Store, want.Name)
	switch {
	case isClass(err, fetch.Source):
		return nil, fail(fetch.Source, "%w: nothing is written over it, so delete it first", err)
	case err != nil:
		return nil, err
	case have == nil:
		return want, want.check()
	case have.Digest() != c.SHA512 || have.Size != c.Size:
		return nil, fail(fetch.Source, "%s has a backup %s of other bytes (%d, sha512 %.16s…): delete it first, or back up an image of another name",
			w.Store, want.Name, have.Size, have.Checksum)
	case have.Complete():
		return have, nil
	}
	want.Created = have.Created
	return want, nil
}

func (w Write) save(ctx context.Context, b *Backup) error {
	data, err := b.Marshal()
	if err != nil {
		return err
	}
	if err := w.Store.Put(ctx, cfgKey(b.Name), data); err != nil {
		return fmt.Errorf("write %s of backup %s: %w", cfgName, b.Name, err)
	}
	return nil
}

// store brings all blocks of the image into the Store: one goroutine reads ahead
// of the workers.
func (w Write) store(ctx context.Context, im *image, progress *fetch.Progress) ([]Block, error) {
	blocks, err := im.blocks()
	if err != nil {
		return nil, err
	}
	progress.Done.Store(im.Copy.Size)
	for _, b := range blocks {
		progress.Done.Add(-int64(im.length(b.Offset)))
	}
	packers := make(chan *encoder, encoders)
	for range encoders {
		e, err := newEncoder(w.Compression)
		if err != nil {
			return nil, err
		}
		packers <- e
	}
	readers := make(chan *reader, decoders)
	for range decoders {
		readers <- nil
	}
	free := make(chan []byte, workers(w.Workers)+1)
	for range cap(free) {
		free <- nil
	}
	group, ctx := errgroup.WithContext(ctx)
	todo := make(chan loaded)
	group.Go(func() error {
		defer close(todo)
		return im.readAll(ctx, blocks, free, todo)
	})
	for range workers(w.Workers) {
		group.Go(func() error {
			k := keeper{store: w.Store, image: im, packers: packers, readers: readers, progress: progress}
			for l := range todo {
				if err := k.keep(ctx, l); err != nil {
					return err
				}
				free <- l.data[:cap(l.data)]
			}
			return nil
		})
	}
	return blocks, group.Wait()
}
