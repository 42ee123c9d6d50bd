package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

func newImageDownload() *cobra.Command {
	var f imageFlags
	var force bool
	cmd := &cobra.Command{
		Use:   "download NAME FILE --disk PATH [flags]",
		Short: "Write an image out to a file",
		Long: `Copies the ready image NAME to FILE, with holes where it has holes, and compares
the bytes with the checksum of the image on the way. FILE appears when all of it is
there and right; "-" is the standard output. NAME may be <name>-<uuid> too.`,
		Example: `  backing-image-manager backing-image download parrot parrot.raw --disk /var/lib/longhorn
  backing-image-manager backing-image download parrot - --disk /var/lib/longhorn | xz >parrot.raw.xz`,
		Args: exactly("NAME", "FILE"),
	}
	f.addDisks(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "replace FILE if it is there")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(f.disks) == 0 {
			return errors.New("--disk is missing: name the disk that the image is on")
		}
		to := target{path: args[1], force: force, out: cmd.OutOrStdout()}
		return downloadOffline(cmd.Context(), f.disks, args[0], to, newProgress(cmd.ErrOrStderr()))
	}
	return cmd
}

// target is where an image is written out to.
type target struct {
	path  string // "-": out
	force bool
	out   io.Writer
}

func downloadOffline(ctx context.Context, paths []string, name string, to target, show *progress) (err error) {
	if err := to.check(); err != nil {
		return err
	}
	shelves, err := openShelves(paths)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeShelves(shelves)) }()
	copies, err := named(shelves, name)
	if err != nil {
		return err
	}
	best := pickCopy(copies)
	r, err := best.Open(best.ID)
	if err != nil {
		return err
	}
	defer r.Close() // only read from: nothing to lose
	counted := &fetch.Progress{}
	counted.Total.Store(r.Size())
	defer show.follow(oneTransfer(reconcile.Download, best, counted))()
	check := func(h hash.Hash) error {
		if got := disk.SHA512.Sum(h); got != best.SHA512 {
			return fmt.Errorf("%s is damaged: checksum mismatch: established %s, got %s", best, best.SHA512, got)
		}
		return r.Unchanged()
	}
	return to.write(&countedReader{ctx, r, counted}, r.Size(), check)
}

// pickCopy takes the copy that answers to a name, as in a list.
func pickCopy(copies []shelved) shelved {
	return slices.MinFunc(copies, func(a, b shelved) int { return compareGenerations(asImage(a), asImage(b)) })
}

func asImage(c shelved) reconcile.ImageStatus {
	return reconcile.ImageStatus{UUID: c.ID.UUID, Copies: []reconcile.CopyStatus{copyOn(c.Path(), c.Copy, disk.Users{})}}
}

func (t target) check() error {
	if t.path == "-" {
		if _, tty := terminal(t.out); tty {
			return errors.New("an image is not for a terminal: redirect the output, or name a file")
		}
		return nil
	}
	_, err := os.Lstat(t.path)
	switch {
	case err == nil && !t.force:
		return fmt.Errorf("%s is there already: remove it, or replace it with --force", t.path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// write copies size bytes of r and has them checked before anybody can take them
// for the image.
func (t target) write(r io.Reader, size int64, check func(hash.Hash) error) error {
	h := disk.SHA512.New()
	if t.path == "-" {
		if _, err := io.Copy(t.out, io.TeeReader(r, h)); err != nil {
			return fmt.Errorf("write image out: %w", err)
		}
		return check(h)
	}
	f, err := os.CreateTemp(filepath.Dir(t.path), "."+filepath.Base(t.path)+".*")
	if err != nil {
		return err
	}
	err = writeSparse(f, io.TeeReader(r, h), size)
	if err == nil {
		err = check(h)
	}
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err == nil {
		err = t.check() // it may have come meanwhile
	}
	if err == nil {
		err = os.Rename(f.Name(), t.path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", t.path, err), os.Remove(f.Name()))
	}
	return nil
}

// writeSparse leaves holes where r has zeros.
func writeSparse(f *os.File, r io.Reader, size int64) error {
	const step = 64 << 10
	block, zeros := make([]byte, step), make([]byte, step)
	for at := int64(0); at < size; at += step {
		b := block[:min(step, size-at)]
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if bytes.Equal(b, zeros[:len(b)]) {
			continue
		}
		if _, err := f.WriteAt(b, at); err != nil {
			return err
		}
	}
	return f.Truncate(size)
}
