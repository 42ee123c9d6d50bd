package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/spf13/cobra"
)

const (
	defaultWaitTimeout = 5 * time.Minute
	waitPollInterval   = 500 * time.Millisecond
)

func newWait() *cobra.Command {
	var daemon daemonFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait --for ready [NAME]... [--url URL] [flags]",
		Short: "Wait until images have all desired copies ready",
		Long: `Waits until each image NAME has as many ready copies as desired, in the whole cluster
as one daemon sees it. Without NAME it waits for all declared images, and for a
configuration without errors.

The daemon may start or restart in the meantime. On a terminal the command shows the
images that are not ready.

Exit status: 0 if all are ready; 1 after --timeout, with a line for each image that is
not ready, and immediately for a NAME that is not declared.`,
		Example: `  backing-image-manager wait --for ready
  backing-image-manager wait --for ready parrot macaw --timeout 30m --url http://localhost:8000`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	choiceFlag(cmd, "for", "", "condition to wait for", "ready")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultWaitTimeout, "give up after this time; 0: never")
	daemon.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if timeout < 0 {
			return fmt.Errorf("--timeout is %v: write a duration such as 10m, or 0 for no limit", timeout)
		}
		client, err := daemon.client()
		if err != nil {
			return err
		}
		return waitReady(cmd.Context(), client, names, timeout, newProgress(cmd.ErrOrStderr()))
	}
	return cmd
}

// waitReady polls the status until all images are ready. The error lists the images that
// are not. On a terminal, bars shows them while it waits.
func waitReady(ctx context.Context, client *api.Client, names []string, timeout time.Duration, bars *progress) error {
	defer bars.showPending(nil)
	limited := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	tick := time.NewTicker(waitPollInterval)
	defer tick.Stop()
	var missing error
	for {
		s, err := client.Status(limited)
		if err == nil {
			err = checkReady(s, names)
		}
		switch {
		case err == nil || limited.Err() == nil && isPermanent(err):
			return err
		case limited.Err() == nil || missing == nil: // a request that the timeout cut short says nothing new
			missing = err
			bars.showPending(err)
		}
		select {
		case <-limited.Done():
			if ctx.Err() != nil {
				return errors.Join(errors.New("stopped waiting"), missing)
			}
			return errors.Join(fmt.Errorf("not ready within %v", timeout), missing)
		case <-tick.C:
		}
	}
}

// isPermanent reports whether waiting cannot remove the cause of an error. A daemon that has
// not started yet, or that stops, may respond later.
func isPermanent(err error) bool {
	if refused, ok := errors.AsType[*api.RefusedError](err); ok {
		return refused.Response.Status < http.StatusInternalServerError
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	_, missing := errors.AsType[*missingError](err)
	_, unreachable := errors.AsType[*api.UnreachableError](err)
	return !missing && !unreachable
}

// missingError lists what is not ready, with one line for each image.
type missingError struct{ lines []error }

func (e *missingError) Error() string { return errors.Join(e.lines...).Error() }

// checkReady checks the named images, or all declared ones. The error is a *missingError, or
// another one if waiting cannot help.
func checkReady(s status.Status, names []string) error {
	if s.Config.Allowed == schema.ObserveOnly.String() {
		return missing("the configuration is unknown: %s", cmp.Or(s.Config.Fault, firstError(s.Config.Errors)))
	}
	var lines []error
	if len(names) == 0 {
		names = declaredNames(s)
		switch {
		case s.Config.Fault != "": // the status shows the last valid declarations
			lines = append(lines, fmt.Errorf("the configuration is unusable: %s", report.OneLine(s.Config.Fault)))
		case s.Config.Digest == "":
			lines = append(lines, fmt.Errorf("the configuration has errors: %s", firstError(s.Config.Errors)))
		}
	}
	for _, name := range names {
		image, declared := declaredImage(s, name)
		switch {
		case !declared:
			return fmt.Errorf("%s is not declared", name)
		case image.Wanted == 0 || image.Ready < image.Wanted:
			lines = append(lines, fmt.Errorf("%s: %d of %d copies ready%s", name, image.Ready, image.Wanted, whyMissing(image)))
		}
	}
	if len(lines) > 0 {
		return &missingError{lines}
	}
	return nil
}

func missing(format string, args ...any) error {
	return &missingError{[]error{fmt.Errorf(format, args...)}}
}

func firstError(texts []string) string {
	if len(texts) == 0 {
		return "it was not read yet"
	}
	return report.OneLine(texts[0])
}

func declaredNames(s status.Status) []string {
	var names []string
	for _, image := range s.Images {
		if image.Declared {
			names = append(names, image.Name)
		}
	}
	return names
}

// declaredImage finds a declared image by its name. An image whose declaration is invalid
// counts as declared: its message has the error.
func declaredImage(s status.Status, name string) (status.ImageStatus, bool) {
	for _, image := range s.Images {
		if image.Name == name && (image.Declared || len(s.Config.Errors) > 0 && image.Message != "") {
			return image, true
		}
	}
	return status.ImageStatus{}, false
}

// maxReasons is the number of copies that an error describes. An image on all disks may
// have hundreds.
const maxReasons = 3

// whyMissing is the end of an error about an image that is not ready: the message of the
// image, or those of its copies that are not ready.
func whyMissing(image status.ImageStatus) string {
	if image.Message != "" {
		return ": " + report.OneLine(image.Message)
	}
	why, n := "", 0
	for _, c := range image.Copies {
		if c.State == disk.Ready {
			continue
		}
		if n++; n <= maxReasons {
			why += fmt.Sprintf("; %s is %s: %s", report.DiskName(c), c.State, cmp.Or(report.OneLine(report.CopyMessage(c)), "unknown reason"))
		}
	}
	if n > maxReasons {
		why += fmt.Sprintf("; and %d more", n-maxReasons)
	}
	return why
}
