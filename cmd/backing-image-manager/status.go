package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func newStatus() *cobra.Command {
	var f imageFlags
	cmd := &cobra.Command{
		Use:   "status [--watch] [--url URL] [flags]",
		Short: "Show the state of the cluster as a daemon sees it",
		Long: `Prints the state of the configuration at a daemon, the peers and whether they have the
same configuration, the disks, and each image with its copies on all nodes. For an
unreachable node it prints the last known state. The table is a summary: equal copies
share a line, and in a large cluster only nodes with problems are listed. -o json
prints everything.

The output of -o json can be saved as a --state for reconcile --dry-run.

--watch follows the state until Ctrl-C, and then exits with 0. On a terminal it redraws the
table. Elsewhere it prints one line for each change: at first the configuration, the images
and what is not ready. With -o json it prints one document in one line for each change.
While the daemon cannot be reached, the command says so and tries again.`,
		Example: `  backing-image-manager status
  backing-image-manager status --watch
  backing-image-manager status --url http://node1:8000 --token-file token -o json`,
		Args: exactArgs(),
	}
	output := outputFlag(cmd, report.Table, report.JSON)
	var watch bool
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow the state until Ctrl-C")
	f.addURL(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if watch {
			client, err := f.client()
			if err != nil {
				return err
			}
			return newStatusWatch(cmd.OutOrStdout(), cmd.ErrOrStderr(), output.value).follow(cmd.Context(), client)
		}
		s, err := f.status(cmd.Context())
		if err != nil {
			return err
		}
		if output.value == report.JSON {
			return report.WriteJSON(cmd.OutOrStdout(), s)
		}
		return report.WriteStatus(cmd.OutOrStdout(), s)
	}
	return cmd
}

const (
	// watchWait is how long the daemon may wait for a change before it responds.
	watchWait = 30 * time.Second
	// watchGap is the least time between two requests: a large cluster may change all the time.
	watchGap = 250 * time.Millisecond
	// watchRetry is the time between attempts to reach the daemon.
	watchRetry = time.Second
)

// statusWatch prints what a daemon says, and whether it can be reached: on a terminal as a table that it redraws, elsewhere
// as lines.
type statusWatch struct {
	out, err io.Writer
	json     bool
	screen   *progress // the terminal; nil means lines

	last    status.Status // the last document
	problem string        // why the daemon cannot be reached; "" means that it can
}

func newStatusWatch(out, err io.Writer, format report.Format) *statusWatch {
	w := &statusWatch{out: out, err: err, json: format == report.JSON}
	if p := newProgress(out); p.tty != nil && !w.json {
		w.screen = p
	}
	return w
}

// follow prints changes until ctx ends, which is no error.
func (w *statusWatch) follow(ctx context.Context, client *api.Client) error {
	known, shown := "", "" // the ETags of the last response and of the last document that was printed
	for {
		began := time.Now()
		s, etag, err := client.StatusAfter(ctx, known, watchWait)
		gap := watchGap
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && isPermanent(err):
			return err
		case err != nil:
			w.setProblem(err, client.Address())
			known, gap = "", watchRetry // the next response must not wait for a change
		default:
			w.setProblem(nil, client.Address())
			if known = etag; s == nil || etag == shown {
				break
			}
			shown = etag
			if err := w.show(*s); err != nil {
				return err
			}
		}
		pause := time.NewTimer(gap - time.Since(began))
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// setProblem prints why the daemon cannot be reached, once for each reason. If err is nil, it prints that the daemon responds again.
func (w *statusWatch) setProblem(err error, address string) {
	problem := ""
	if err != nil {
		problem = strings.Join(errorLines(err), "; ")
	}
	if problem == w.problem {
		return
	}
	w.problem = problem
	switch {
	case w.screen != nil:
		w.draw()
	case problem != "":
		report.WriteLine(w.err, "warning: %s; trying again", problem)
	default:
		report.WriteLine(w.err, "the daemon at %s responds again", address)
	}
}

// show prints a changed document.
func (w *statusWatch) show(s status.Status) error {
	was := w.last
	w.last = s
	switch {
	case w.screen != nil:
		w.draw()
		return nil
	case w.json:
		return report.WriteJSONLine(w.out, s)
	}
	return report.WriteStatusChanges(w.out, was, s)
}

// draw redraws the last document on the terminal, as far as it fits.
func (w *statusWatch) draw() {
	var lines []string
	if w.problem != "" {
		lines = append(lines, "not connected, trying again: "+w.problem)
	}
	if w.last.Node != "" {
		var b bytes.Buffer
		_ = report.WriteStatus(&b, w.last) // a buffer accepts everything
		lines = append(lines, strings.Split(strings.TrimRight(b.String(), "\n"), "\n")...)
	}
	_, height, err := term.GetSize(int(w.screen.tty.Fd()))
	if err != nil || height < 3 {
		height = 24
	}
	if most := height - 2; len(lines) > most { // a line that has scrolled off the screen cannot be redrawn
		lines = append(lines[:most:most], fmt.Sprintf("and %d more lines: make the window higher, or run status without --watch", len(lines)-most))
	}
	w.screen.draw(truncate(lines, w.screen.width()))
}
