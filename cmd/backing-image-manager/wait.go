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
	defaultPatience = 5 * time.Minute
	waitAgain       = 500 * time.Millisecond
)

func newWait() *cobra.Command {
	var daemon daemonFlags
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait --for ready [NAME]... [--url URL] [flags]",
		Short: "Wait until images are ready on as many disks as they are wanted on",
		Long: `Waits until as many copies as are wanted of each NAME are ready, in the whole cluster
as the asked daemon sees it. Without NAME it waits for all that is declared, and for
a configuration without mistakes.

The daemon may not be up yet, or start again meanwhile. On a terminal you see what is
waited for.

Exit status: 0 when all are ready; 1 when --timeout has passed, with a line for each
image that is not, and at once for a NAME that is not declared.`,
		Example: `  backing-image-manager wait --for ready
  backing-image-manager wait --for ready parrot macaw --timeout 30m --url http://localhost:8000`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	choiceFlag(cmd, "for", "", "what to wait for", "ready")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultPatience, "give up after so long; 0: never")
	daemon.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if timeout < 0 {
			return fmt.Errorf("--timeout is %v: write a duration like 10m, or 0 for none", timeout)
		}
		client, err := daemon.client()
		if err != nil {
			return err
		}
		return waitReady(cmd.Context(), client, names, timeout, newProgress(cmd.ErrOrStderr()))
	}
	return cmd
}

// waitReady asks until all is ready, and returns what is missing when it gives up. On a
// terminal that is seen meanwhile.
func waitReady(ctx context.Context, client *api.Client, names []string, timeout time.Duration, seen *progress) error {
	defer seen.showPending(nil)
	limited := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	tick := time.NewTicker(waitAgain)
	defer tick.Stop()
	var missing error
	for {
		s, err := client.Status(limited)
		if err == nil {
			err = notReady(s, names)
		}
		switch {
		case err == nil || limited.Err() == nil && lasting(err):
			return err
		case limited.Err() == nil || missing == nil: // a question that was cut short tells nothing
			missing = err
			seen.showPending(err)
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

// lasting reports whether waiting does not help against an error. A daemon that is
// not there yet, or is about to stop, helps itself.
func lasting(err error) bool {
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

// missingError says what is not ready yet, one line for each image.
type missingError struct{ lines []error }

func (e *missingError) Error() string { return errors.Join(e.lines...).Error() }

// notReady says what of the names, or of all that is declared, is not ready: a
// *missingError, or another one if waiting does not help.
func notReady(s status.Status, names []string) error {
	if s.Config.Allowed == schema.ObserveOnly.String() {
		return missing("the configuration is not known: %s", cmp.Or(s.Config.Fault, firstOf(s.Config.Errors)))
	}
	var lines []error
	if len(names) == 0 {
		names = declaredNames(s)
		switch {
		case s.Config.Fault != "": // what is declared is then what was before
			lines = append(lines, fmt.Errorf("the configuration cannot be used: %s", report.OneLine(s.Config.Fault)))
		case s.Config.Digest == "":
			lines = append(lines, fmt.Errorf("the configuration has mistakes: %s", firstOf(s.Config.Errors)))
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

func firstOf(texts []string) string {
	if len(texts) == 0 {
		return "it is not read yet"
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

// declaredImage finds an image by name. One whose declaration has a mistake is shown
// with what is wrong, and is waited for like any.
func declaredImage(s status.Status, name string) (status.ImageStatus, bool) {
	for _, image := range s.Images {
		if image.Name == name && (image.Declared || len(s.Config.Errors) > 0 && image.Message != "") {
			return image, true
		}
	}
	return status.ImageStatus{}, false
}

// mostReasons is how many copies of an image are told of: one for all disks may have
// hundreds.
const mostReasons = 3

// whyMissing says of an image, or else of its copies that are not ready, what they
// wait for.
func whyMissing(image status.ImageStatus) string {
	if image.Message != "" {
		return ": " + report.OneLine(image.Message)
	}
	why, n := "", 0
	for _, c := range image.Copies {
		if c.State == disk.Ready {
			continue
		}
		if n++; n <= mostReasons {
			why += fmt.Sprintf("; %s is %s: %s", report.DiskName(c), c.State, cmp.Or(report.OneLine(report.CopyMessage(c)), "no reason is known"))
		}
	}
	if n > mostReasons {
		why += fmt.Sprintf("; and %d more", n-mostReasons)
	}
	return why
}
