package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/outfile"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

func newImageDownload() *cobra.Command {
	var f imageFlags
	to := &destination{}
	cmd := &cobra.Command{
		Use:   "download NAME FILE [--disk PATH | --url URL] [flags]",
		Short: "Write an image out to a file",
		Long: `Copies the ready image NAME to FILE, from a daemon, or with --disk from a disk. Zeros
are not sent, and FILE has holes for them. Every chunk is checked as it comes, and the
checksum of the whole at the end: only then FILE appears. Until then what came is in
FILE.image-part. Whatever ends the download, the same command goes on from there.

FILE "-" is the standard output. NAME may be <name>-<uuid> too; alone it is the declared
generation. --compress packs what is written, and appends .gz or .zst to FILE if it does
not end so.

The same can be had without this program from the daemon's address
/v1/images/NAME/download, with ranges, or with ?compress=gzip or zstd.`,
		Example: `  backing-image-manager backing-image download parrot parrot.raw
  backing-image-manager backing-image download parrot parrot.raw --compress zstd --url https://node1:8000 --token-file token
  backing-image-manager backing-image download parrot - --disk /var/lib/longhorn | ssh host 'cat >parrot.raw'
  curl -o parrot.raw -C - http://localhost:8000/v1/images/parrot/download`,
		Args: exactly("NAME", "FILE"),
	}
	f.add(cmd)
	f.addOn(cmd)
	cmd.Flags().BoolVar(&to.Replace, "force", false, "replace FILE if it is there")
	packing := choiceFlag(cmd, "compress", "", "pack what is written", "none", "gzip", "zstd")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if packing.word != "none" {
			to.Packing = outfile.Packing(packing.word)
		}
		to.Path, to.out = args[1], cmd.OutOrStdout()
		if err := to.prepare(); err != nil {
			return err
		}
		from, err := f.supply(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		err = to.take(cmd.Context(), from, newProgress(cmd.ErrOrStderr()))
		return errors.Join(err, from.close())
	}
	return cmd
}

// supply is an image that can be had.
type supply interface {
	// what says which image it is, and how it is to be shown.
	what() offered
	// manifest returns the manifest, for which file makes a place; nil: there is none.
	manifest(ctx context.Context, file func() (*os.File, error)) (*disk.Manifest, error)
	// chunks hands over all chunks from first on, nil for zeros.
	chunks(ctx context.Context, m *disk.Manifest, first int64, put func([]byte) error) error
	close() error
}

// offered is what a supply has.
type offered struct {
	disk.ID
	place  string
	size   int64
	sha512 disk.Digest
}

// supply finds the image that answers to a name.
func (f *imageFlags) supply(ctx context.Context, name string) (supply, error) {
	if len(f.disks) == 0 {
		return openFarSupply(ctx, f.caller, name, f.on)
	}
	return openNearSupply(f.disks, name, f.on)
}

// destination is where an image is written out to.
type destination struct {
	outfile.Target // Path "-": out
	out            io.Writer
}

// otherNames are those of the standard output besides "-". Where that goes to a file, it
// would be taken for a file that is in the way.
var otherNames = []string{"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}

func (d *destination) prepare() error {
	if slices.Contains(otherNames, d.Path) {
		d.Path = "-"
	}
	switch d.Path {
	case "":
		return errors.New("FILE is empty: name the file, or write - for the standard output")
	case "-":
		if _, tty := terminal(d.out); tty {
			return errors.New("an image is not for a terminal: redirect the output, or name a file")
		}
		return nil
	}
	if ending := d.Packing.Ending(); !strings.HasSuffix(d.Path, ending) {
		d.Path += ending
	}
	return replaceable(d.Check())
}

// replaceable says what to do about a file that is there.
func replaceable(err error) error {
	if _, ok := errors.AsType[*outfile.ExistsError](err); ok {
		return fmt.Errorf("%w: remove it, or replace it with --force", err)
	}
	return err
}

// take writes the image, and says what is left of it if that fails.
func (d *destination) take(ctx context.Context, from supply, show *progress) error {
	image, counted := from.what(), &fetch.Progress{}
	counted.Total.Store(image.size)
	defer show.follow(oneTransfer(reconcile.Download, image.ID, image.place, counted))()
	w := outfile.Stream(d.out, d.Packing, image.size)
	if d.Path != "-" {
		var err error
		if w, err = outfile.Create(d.Target, image.size); err != nil {
			return replaceable(err)
		}
	}
	err := d.fill(ctx, from, w, counted)
	if err == nil {
		err = w.Commit(image.sha512)
		if _, wrong := errors.AsType[*disk.ChecksumError](err); wrong {
			err = &damagedError{fmt.Sprintf("%s on %s", image.ID, image.place), err}
		}
	}
	err = errors.Join(replaceable(err), w.Close())
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = errors.New("stopped")
	}
	if _, statErr := os.Stat(d.PartPath()); err != nil && d.Path != "-" && statErr == nil {
		return &keptError{err, d.PartPath(), w.Offset(), image.size}
	}
	return err
}

func (d *destination) fill(ctx context.Context, from supply, w *outfile.Writer, counted *fetch.Progress) error {
	m, err := from.manifest(ctx, d.unnamed)
	if err != nil {
		return err
	}
	if m != nil {
		defer m.Close() // only read from
	}
	if err := w.Resume(ctx, m, func(n int64) { counted.Done.Add(n) }); err != nil {
		return err
	}
	return from.chunks(ctx, m, w.Next(), func(chunk []byte) error {
		err := w.Put(chunk)
		counted.Done.Store(w.Offset())
		return err
	})
}

// unnamed makes a file that nobody else sees, beside FILE where that is possible: memory
// must not grow with the image.
func (d *destination) unnamed() (*os.File, error) {
	folder := filepath.Dir(d.Path)
	if d.Path == "-" {
		folder = os.TempDir()
	}
	fd, err := unix.Open(folder, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		fd, err = unix.MemfdCreate("manifest", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, &os.PathError{Op: "make a file in", Path: folder, Err: err}
	}
	return os.NewFile(uintptr(fd), "manifest"), nil
}

// keptError says that a download can go on later.
type keptError struct {
	error
	part       string
	done, size int64
}

func (e *keptError) Unwrap() error { return e.error }

func (e *keptError) hint() string {
	return fmt.Sprintf("%s of %s are in %s: the same command goes on from there", size(e.done), size(e.size), e.part)
}
