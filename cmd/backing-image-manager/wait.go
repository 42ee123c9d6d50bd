package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

const (
	defaultWaitTimeout = 5 * time.Minute
	waitPollInterval   = 500 * time.Millisecond
	// declareGrace is how long an image may be undeclared before the command fails. A daemon applies
	// a change of its directory within a second, and then does a round. A shorter time would
	// reject an image that was declared just before the command started.
	declareGrace = 3 * time.Second
)

func newWait() *cobra.Command {
	var daemon daemonFlags
	var timeout time.Duration
	var revision, digest string
	cmd := &cobra.Command{
		Use:   "wait --for ready [NAME]... [--revision REV | --digest DIGEST] [--url URL] [flags]",
		Short: "Wait until images have all desired copies ready",
		Long: `Waits until each image NAME has as many ready copies as desired, in the whole cluster
as one daemon sees it. Without NAME it waits for all declared images, and for a
configuration without errors.

A daemon notices a changed config directory after a moment. A script that changes the
directory therefore names the configuration to wait for: --revision names a git commit,
and --digest the content, as validate -o json prints it. The command judges the images only
after the daemon has applied that configuration. The first 7 digits are enough.

The daemon may start or restart in the meantime. On a terminal the command shows the
images that are not ready.

Exit status: 0 if all are ready; 1 after --timeout, with a line for each image that is
not ready. If a NAME is not declared, it is 1 after 3 seconds, in which a daemon applies a
new declaration. With --revision or --digest, it is 1 when that configuration is applied.`,
		Example: `  backing-image-manager wait --for ready
  backing-image-manager wait --for ready parrot macaw --timeout 30m --url http://localhost:8000
  backing-image-manager wait --for ready --revision "$(git -C config rev-parse HEAD)"
  backing-image-manager wait --for ready --digest "$(backing-image-manager validate config -o json | jq -r '.configurations[0].digest')"`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	choiceFlag(cmd, "for", "", "condition to wait for", "ready")
	cmd.Flags().DurationVar(&timeout, "timeout", defaultWaitTimeout, "give up after this time; 0 means no limit")
	cmd.Flags().StringVar(&revision, "revision", "", "first wait until the daemon has applied the git commit `REV`")
	cmd.Flags().StringVar(&digest, "digest", "", "first wait until the daemon has applied the configuration with this config `DIGEST`")
	daemon.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if timeout < 0 {
			return fmt.Errorf("--timeout is %v: write a duration such as 10m, or 0 for no limit", timeout)
		}
		of, err := configurationOf(cmd.Flags().Changed, revision, digest)
		if err != nil {
			return err
		}
		client, err := daemon.client()
		if err != nil {
			return err
		}
		return waitReady(cmd.Context(), client, names, of, timeout, newProgress(cmd.ErrOrStderr()))
	}
	return cmd
}

var digitsOfHash = regexp.MustCompile(`^[0-9a-f]{7,}$`)

// configurationOf returns the configuration that --revision or --digest names. changed(flag) reports
// whether a flag was given. An empty value is an error: a script passes one if a command in it failed.
func configurationOf(changed func(flag string) bool, revision, digest string) (status.ConfigID, error) {
	of := status.ConfigID{Revision: strings.ToLower(revision), Digest: strings.ToLower(digest)}
	switch {
	case changed("revision") && changed("digest"):
		return of, errors.New("--revision and --digest exclude each other: give one of them")
	case changed("revision") && !digitsOfHash.MatchString(of.Revision):
		return of, fmt.Errorf("--revision is %q: write the hash of a commit, at least 7 hex digits, as git rev-parse prints it", revision)
	case changed("digest") && !digitsOfHash.MatchString(of.Digest):
		return of, fmt.Errorf("--digest is %q: write a config digest, at least 7 hex digits, as validate -o json prints it for a valid directory", digest)
	}
	return of, nil
}

// waitReady polls the status until the daemon has applied a configuration and the images are ready.
// Without names, these are all declared images. The error lists the images that are not ready. On a
// terminal, bars shows them during the wait.
func waitReady(ctx context.Context, client *api.Client, names []string, of status.ConfigID, timeout time.Duration, bars *progress) error {
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
	var undeclaredSince time.Time
	for {
		s, err := client.Status(limited)
		if err == nil {
			err = cmp.Or(s.Config.CheckApplied(of), s.CheckReady(names))
		}
		if _, undeclared := errors.AsType[*status.NotDeclaredError](err); undeclared && of == (status.ConfigID{}) {
			if undeclaredSince.IsZero() {
				undeclaredSince = time.Now()
			}
			if time.Since(undeclaredSince) < declareGrace {
				err = &status.NotReadyError{Lines: []error{err}}
			}
		}
		switch {
		case err == nil || limited.Err() == nil && isPermanent(err):
			return err
		case limited.Err() == nil || missing == nil: // otherwise the timeout ended the request, and its error is not the reason
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

// isPermanent reports whether an error stays, however long the command waits. A daemon that has not
// started yet, or that stops, may respond later.
func isPermanent(err error) bool {
	if refused, ok := errors.AsType[*api.RefusedError](err); ok {
		return refused.Response.Status < http.StatusInternalServerError
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	_, missing := errors.AsType[*status.NotReadyError](err)
	_, unreachable := errors.AsType[*api.UnreachableError](err)
	return !missing && !unreachable
}
