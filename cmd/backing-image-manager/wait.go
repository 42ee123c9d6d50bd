package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
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
// are not. On a terminal, the argument bars shows these images during the wait.
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
			err = s.CheckReady(names)
		}
		switch {
		case err == nil || limited.Err() == nil && isPermanent(err):
			return err
		case limited.Err() == nil || missing == nil: // the error of a request that the timeout ended is not the reason
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
	_, missing := errors.AsType[*status.NotReadyError](err)
	_, unreachable := errors.AsType[*api.UnreachableError](err)
	return !missing && !unreachable
}
