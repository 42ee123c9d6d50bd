package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newImageVerify() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "verify NAME [--disk PATH | --url URL] [flags]",
		Short: "Read an image and compare it with its checksum",
		Long: `With --disk, reads every copy of NAME on the disks once and compares it with the
checksum that it had when it became ready. A copy that differs is marked failed, so
that the next reconcile replaces it. The image of another program is compared with
its backing.cfg and left as it is. NAME may be <name>-<uuid> too.

Without --disk, a daemon is asked to verify its copies of the declared image NAME,
and waited for. It replaces a copy that differs at once.

Exit status: 0 when all bytes match, 1 when they do not.`,
		Example: `  backing-image-manager backing-image verify parrot --disk /var/lib/longhorn
  backing-image-manager backing-image verify parrot --url http://localhost:8000`,
		Args: exactly("NAME"),
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(f.disks) > 0 {
			return verifyOffline(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), f.disks, args[0])
		}
		return verifyByDaemon(cmd.Context(), cmd.OutOrStdout(), f, args[0])
	}
	return cmd
}

// verifyOffline verifies all copies of name on disks that nobody else writes to.
func verifyOffline(ctx context.Context, out, errOut io.Writer, paths []string, name string) (err error) {
	shelves, err := openShelves(paths)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeShelves(shelves)) }()
	copies, err := named(shelves, name)
	if err != nil {
		return err
	}
	for _, s := range shelves {
		unlock, err := s.Lock()
		if err != nil {
			return err
		}
		defer func() { _ = unlock() }() // the end of the process unlocks as well
	}
	show := newProgress(errOut)
	var wrong []error
	for _, c := range copies {
		found, err := verifyCopy(ctx, c, show)
		switch {
		case err != nil && ctx.Err() != nil:
			return errors.Join(append(wrong, errors.New("stopped; nothing was settled"))...)
		case err != nil:
			wrong = append(wrong, err)
		default:
			fmt.Fprintf(out, "%s: the bytes match: sha512 %s\n", c, found)
		}
	}
	return errors.Join(wrong...)
}

// verifyCopy reads one copy and returns its digest if that is what it has to be.
func verifyCopy(ctx context.Context, c shelved, show *progress) (disk.Digest, error) {
	if c.Size == 0 && c.State == disk.Pending {
		return disk.Digest{}, fmt.Errorf("%s is not there yet: nothing to verify", c)
	}
	counted := &fetch.Progress{}
	counted.Total.Store(c.Size)
	defer show.follow(oneTransfer(reconcile.Verify, c.ID, c.Path(), counted))()
	if !c.Owned {
		return verifyForeign(ctx, c, counted)
	}
	// What was declared of it when it became ready: its bytes alone may look like
	// something else, and backing.cfg says what was expected.
	want := disk.Expected{Digest: c.CfgExpected, Format: c.Format}
	now, err := c.Verify(ctx, c.ID, want, func(n int64) { counted.Done.Add(n) })
	if err != nil {
		return disk.Digest{}, err
	}
	if now.State != disk.Ready {
		return disk.Digest{}, fmt.Errorf("%s is %s: %s", c, now.State, now.Message)
	}
	return now.SHA512, nil
}

func oneTransfer(kind reconcile.Kind, id disk.ID, place string, p *fetch.Progress) func() map[reconcile.Key]reconcile.Transfer {
	t := reconcile.Transfer{
		Action:   reconcile.Action{Kind: kind, Image: id.Name, UUID: id.UUID, Disk: place},
		Progress: p,
	}
	return func() map[reconcile.Key]reconcile.Transfer {
		return map[reconcile.Key]reconcile.Transfer{t.Action.Key(): t}
	}
}

// verifyForeign compares an image that is not ours with what its backing.cfg says,
// and writes nothing: an image that were adopted so would count as ours later, and
// ours is cleaned up when it is not declared.
func verifyForeign(ctx context.Context, c shelved, counted *fetch.Progress) (disk.Digest, error) {
	if c.SHA512.IsZero() {
		return disk.Digest{}, fmt.Errorf("%s: there is no checksum to compare it with: declare the image, and reconcile adopts it", c)
	}
	f, err := os.Open(filepath.Join(c.Path(), "backing-images", c.ID.String(), "backing"))
	if err != nil {
		return disk.Digest{}, err
	}
	defer f.Close()
	defer unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // only a favour to others
	h := disk.SHA512.New()
	if _, err := io.Copy(h, &countedReader{ctx, f, counted}); err != nil {
		return disk.Digest{}, fmt.Errorf("read %s: %w", c, err)
	}
	if got := disk.SHA512.Digest(h); got != c.SHA512 {
		return disk.Digest{}, fmt.Errorf("%s: checksum mismatch: backing.cfg says %s, got %s", c, c.SHA512, got)
	}
	return c.SHA512, nil
}

// countedReader ends a long reading when ctx does, and counts it.
type countedReader struct {
	ctx     context.Context
	r       io.Reader
	counted *fetch.Progress
}

func (r *countedReader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := r.r.Read(b)
	r.counted.Done.Add(int64(n))
	return n, err
}

const verifyAgain = 500 * time.Millisecond

// verifyByDaemon asks a daemon to verify the ready copies of an image, and waits
// until it has.
func verifyByDaemon(ctx context.Context, out io.Writer, f imageFlags, name string) error {
	client, err := f.client()
	if err != nil {
		return err
	}
	before, err := client.Status(ctx)
	if err != nil {
		return err
	}
	if err := client.Verify(ctx, name); err != nil {
		return err
	}
	tick := time.NewTicker(verifyAgain)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.New("stopped waiting; the daemon goes on by itself")
		case <-tick.C:
		}
		now, err := client.Status(ctx)
		if err != nil {
			return err
		}
		if !verifying(before, now, name) {
			return reportVerified(out, before, now, name)
		}
	}
}

// verifying reports whether what was asked for after the status before is still to
// be done, or not seen to be done, in the status now.
func verifying(before, now reconcile.Status, name string) bool {
	return now.Time.Equal(before.Time) || slices.ContainsFunc(now.Plan.Actions, func(a reconcile.Action) bool {
		return a.Kind == reconcile.Verify && a.Image == name && a.Node == now.Node
	})
}

// reportVerified says what became of the copies that were ready before. A daemon
// replaces at once what turns out to be damaged; that did not match all the same.
func reportVerified(out io.Writer, before, now reconcile.Status, name string) error {
	var wrong []error
	for _, image := range now.Images {
		if image.Name != name || !image.Declared {
			continue
		}
		for _, c := range image.Copies {
			id := disk.ID{Name: image.Name, UUID: image.UUID}
			was, wasReady := readyBefore(before, id, c)
			switch {
			case !wasReady, c.Node != now.Node: // another daemon verifies those
			case c.State == disk.Ready && c.Damaged.After(was.Damaged):
				wrong = append(wrong, fmt.Errorf("%s on %s was damaged, and has been replaced by one that matches", id, report.DiskName(c)))
			case c.State == disk.Ready && !c.Verified.After(was.Verified):
				wrong = append(wrong, fmt.Errorf("%s on %s could not be verified: %s", id, report.DiskName(c), report.OneLine(c.Message)))
			case c.State == disk.Ready:
				fmt.Fprintf(out, "%s on %s: the bytes match: sha512 %s\n", id, report.DiskName(c), c.SHA512)
			case c.Running && c.Damaged.After(was.Damaged):
				wrong = append(wrong, fmt.Errorf("%s on %s was damaged, and is being mended: status tells how far that is", id, report.DiskName(c)))
			default:
				wrong = append(wrong, fmt.Errorf("%s on %s is %s: %s", id, report.DiskName(c), c.State, report.OneLine(c.Message)))
			}
		}
	}
	return errors.Join(wrong...)
}

func readyBefore(before reconcile.Status, id disk.ID, c reconcile.CopyStatus) (was reconcile.CopyStatus, ready bool) {
	for _, image := range before.Images {
		if image.Name != id.Name || image.UUID != id.UUID {
			continue
		}
		for _, b := range image.Copies {
			if report.DiskName(b) == report.DiskName(c) && b.State == disk.Ready {
				return b, true
			}
		}
	}
	return reconcile.CopyStatus{}, false
}
