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

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func newImageVerify() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "verify NAME [--disk PATH | --url URL] [flags]",
		Short: "Read an image and compare it with its digest",
		Long: `With --disk, reads every copy of NAME on the disks once and compares its bytes with the
digest that the copy had when it became ready. A copy that differs is marked as failed,
and the next reconcile replaces it. An unmanaged image is compared with its backing.cfg and
never changed. NAME may also be <name>-<uuid>.

Without --disk, a daemon verifies its copies of the declared image NAME, and the
command waits for the result. The daemon repairs or replaces a damaged copy at once.

Exit status: 0 if all bytes match, 1 otherwise.`,
		Example: `  backing-image-manager backing-image verify parrot --disk /var/lib/longhorn
  backing-image-manager backing-image verify parrot --url http://localhost:8000`,
		Args: exactArgs("NAME"),
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

// verifyOffline verifies all copies of an image on disks that no daemon has locked.
func verifyOffline(ctx context.Context, out, errOut io.Writer, paths []string, name string) (err error) {
	o, err := openDisks(paths)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	copies, err := o.find(name, nil)
	if err == nil {
		err = o.lock()
	}
	if err != nil {
		return err
	}
	bars := newProgress(errOut)
	var failures []error
	for _, c := range copies {
		digest, err := verifyCopy(ctx, o.disks[c.Disk], c, bars)
		switch {
		case err != nil && ctx.Err() != nil:
			return errors.Join(append(failures, errors.New("stopped; the result for this copy is unknown"))...)
		case err != nil:
			failures = append(failures, err)
		default:
			report.WriteLine(out, "%s: the bytes match: sha512 %s", c, digest)
		}
	}
	return errors.Join(failures...)
}

// verifyCopy reads one copy and returns its digest if that is the expected one.
func verifyCopy(ctx context.Context, on *disk.Disk, c status.CopyStatus, bars *progress) (ident.Digest, error) {
	if c.Size == 0 && c.Copy.State == model.Pending {
		return ident.Digest{}, fmt.Errorf("%s has no file yet: nothing to verify", c)
	}
	p := &fetch.Progress{}
	p.Total.Store(c.Size)
	defer bars.watch(singleTransfer(model.Verify, c.ID, c.Disk, p))()
	if !c.Owned {
		return verifyUnmanaged(ctx, c, p)
	}
	// backing.cfg and the record have the checksum and the format that were declared when the copy
	// became ready. The format counts, because a raw image may begin like an image of another format.
	want := disk.Expected{Digest: c.CfgExpected, Format: c.Format}
	now, err := on.Verify(ctx, c.ID, want, func(n int64) { p.Done.Add(n) })
	if err != nil {
		return ident.Digest{}, err
	}
	if now.State != model.Ready {
		return ident.Digest{}, fmt.Errorf("%s is %s: %s", c, now.State, now.Message)
	}
	return now.SHA512, nil
}

// verifyUnmanaged compares the image of another program with its backing.cfg. It writes
// nothing. A record would make the image owned, and an owned image is deleted when it is
// not declared.
func verifyUnmanaged(ctx context.Context, c status.CopyStatus, p *fetch.Progress) (ident.Digest, error) {
	if c.SHA512.IsZero() {
		return ident.Digest{}, fmt.Errorf("%s has no digest to compare with: declare the image, and reconcile adopts it", c)
	}
	f, err := os.Open(filepath.Join(c.Disk, "backing-images", c.ID.String(), "backing"))
	if err != nil {
		return ident.Digest{}, err
	}
	defer f.Close()
	defer unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // best effort: keep the page cache for VMs
	h := ident.SHA512.New()
	if _, err := io.Copy(h, fetch.CountReader(ctx, f, &p.Done)); err != nil {
		return ident.Digest{}, fmt.Errorf("read %s: %w", c, err)
	}
	if got := ident.SHA512.Digest(h); got != c.SHA512 {
		return ident.Digest{}, fmt.Errorf("%s: checksum mismatch: backing.cfg has %s, got %s", c, c.SHA512, got)
	}
	return c.SHA512, nil
}

const verifyPollInterval = 500 * time.Millisecond

// verifyByDaemon requests that a daemon verifies the ready copies of an image, and waits
// for the result.
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
	tick := time.NewTicker(verifyPollInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return errors.New("stopped waiting; the daemon continues")
		case <-tick.C:
		}
		now, err := client.Status(ctx)
		if err != nil {
			return err
		}
		if !isVerifying(before, now, name) {
			return reportVerified(out, before, now, name)
		}
	}
}

// isVerifying reports whether a requested verification has not started yet or still runs. The
// argument before is the status before the request. The argument now is a later status.
func isVerifying(before, now status.Status, name string) bool {
	return now.Time.Equal(before.Time) || slices.ContainsFunc(now.Plan.Actions, func(a plan.Action) bool {
		return a.Op == model.Verify && a.Image == name && a.Node == now.Node
	})
}

// reportVerified prints the result for each copy of the daemon's node that was ready before
// the request. A copy that is ready now may have been damaged, because the daemon replaces a
// damaged copy at once.
func reportVerified(out io.Writer, before, now status.Status, name string) error {
	was := map[string]status.CopyStatus{} // the copies that were ready
	for _, image := range before.Images {
		for _, c := range image.Copies {
			if c.State == model.Ready {
				was[c.String()] = c
			}
		}
	}
	var failures []error
	for _, image := range now.Images {
		if image.Name != name || !image.Declared {
			continue
		}
		for _, c := range image.Copies {
			was, wasReady := was[c.String()]
			switch {
			case !wasReady, c.Node != now.Node: // the daemon of its node verifies a copy
			case c.State == model.Ready && c.DamagedAt.After(was.DamagedAt):
				failures = append(failures, fmt.Errorf("%s was damaged and has been replaced", c))
			case c.State == model.Ready && !c.VerifiedAt.After(was.VerifiedAt):
				failures = append(failures, fmt.Errorf("%s could not be verified: %s", c, text.Line(c.Message)))
			case c.State == model.Ready:
				report.WriteLine(out, "%s: the bytes match: sha512 %s", c, c.SHA512)
			case c.Running && c.DamagedAt.After(was.DamagedAt):
				failures = append(failures, fmt.Errorf("%s is damaged and is being repaired: the command status shows the progress", c))
			default:
				failures = append(failures, fmt.Errorf("%s is %s", c, c.StateText()))
			}
		}
	}
	return errors.Join(failures...)
}
