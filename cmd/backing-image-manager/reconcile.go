package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// convergence is one run of the command reconcile.
type convergence struct {
	nodeFlags
	dryRun       bool
	offline      bool
	detailedExit bool
	format       string
	out, err     io.Writer
}

func newReconcile() *cobra.Command {
	c := &convergence{}
	cmd := &cobra.Command{
		Use:   "reconcile --config-dir DIR [flags]",
		Short: "Make the disks match the configuration once, or say what that would take",
		Long: `Reads the config directory, looks at the disks of one node, and does the
difference once. What is printed at the end is the plan that is left.

With --dry-run nothing is changed, no origin is asked and no lock is taken: the
plan is printed.

Exit status: 0 when every copy that is wanted of this node is ready and nothing
failed, or with --dry-run; 1 otherwise; 2 with --dry-run --detailed-exitcode when
the plan is not empty.`,
		Example: `  backing-image-manager reconcile --config-dir config --disk /var/lib/longhorn --dry-run
  backing-image-manager reconcile --config-dir config --node node1
  backing-image-manager reconcile --config-dir config --node node1 --dry-run -o markdown`,
		Args: exactly(),
	}
	c.add(cmd)
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "change nothing, print the plan")
	cmd.Flags().BoolVar(&c.offline, "offline", false, "ask no peer; where nodes are declared, nothing is deleted then")
	cmd.Flags().BoolVar(&c.detailedExit, "detailed-exitcode", false, "with --dry-run, exit with 2 when the plan is not empty")
	format := outputFlag(cmd, "text", "json", "yaml", "markdown")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.format, c.out, c.err = format.word, cmd.OutOrStdout(), cmd.ErrOrStderr()
		if err := c.resolve(); err != nil {
			return err
		}
		if c.detailedExit && !c.dryRun {
			return errors.New("--detailed-exitcode is for --dry-run: a real run exits with 0 or 1")
		}
		return c.run(cmd.Context())
	}
	return cmd
}

func (c *convergence) run(ctx context.Context) error {
	result, err := load(ctx, c.err, c.configDir)
	if err != nil {
		return err
	}
	printProblems(c.err, c.configDir, result)
	desired, err := reconcile.Desire(result, c.node, c.disks)
	if err != nil {
		return errors.Join(err, broken(result))
	}
	if c.offline && len(result.Config.Nodes) > 0 && desired.May == schema.Everything {
		desired.May, desired.Offline = schema.NoDeletions, true
	}
	if c.dryRun {
		return c.plan(desired, result)
	}
	return c.converge(ctx, desired, result)
}

// broken is the error of a configuration that is not wholly valid.
func broken(r schema.Result) error {
	mistakes := count(len(r.Errors), "mistake")
	switch {
	case len(r.Errors) == 0:
		return nil
	case r.May == schema.ObserveOnly:
		return fmt.Errorf("the configuration cannot be acted on: it has %s", mistakes)
	}
	return fmt.Errorf("the configuration has %s: nothing is deleted, and broken images are left alone", mistakes)
}

func (c *convergence) plan(d reconcile.Desired, result schema.Result) error {
	r := reconcile.New(fetch.Client{}, slog.New(slog.DiscardHandler), true)
	o := r.Look(d)
	p := d.Plan(o)
	c.warnOfDisks(o)
	if err := errors.Join(c.write(d, p, false), r.Close()); err != nil {
		return err
	}
	if err := broken(result); err != nil {
		return err
	}
	if c.detailedExit && !p.Empty() {
		return &exitError{code: 2}
	}
	return nil
}

// write prints a plan. An empty one may have other reasons than that nothing had to
// be done: to people it says so.
func (c *convergence) write(d reconcile.Desired, p reconcile.Plan, worked bool) error {
	summary := ""
	switch {
	case d.May == schema.ObserveOnly:
		summary = "No plan: too much of the configuration is not known."
	case worked && len(p.Actions) == 0:
		summary = "Done. The disks match the configuration."
	}
	if summary == "" || c.format != "text" && c.format != "markdown" {
		return writePlan(c.out, p, c.format, colourful(c.out))
	}
	if c.format == "markdown" {
		summary = "**" + summary + "**"
	}
	_, err := fmt.Fprintln(c.out, summary)
	return err
}

func (c *convergence) warnOfDisks(o reconcile.Observed) {
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), compareRefs) {
		if problem := o.Disks[ref].Problem; problem != "" {
			fmt.Fprintf(c.err, "warning: disk %s: %s\n", ref, problem)
		}
	}
}

func compareRefs(a, b schema.DiskRef) int { return strings.Compare(a.String(), b.String()) }

func (c *convergence) converge(ctx context.Context, d reconcile.Desired, result schema.Result) error {
	show := newProgress(c.err)
	r := reconcile.New(fetch.Client{SecretsDir: c.secretsDir, AnyFile: true}, show.logger(), false)
	o := r.Look(d)
	if err := r.HeldElsewhere(); err != nil {
		return errors.Join(err, r.Close())
	}
	c.warnOfDisks(o)
	worked := !d.Plan(o).Empty()
	stop := show.follow(r.Transfers)
	o, p, err := r.Converge(ctx, d)
	closed := r.Close() // which waits for what is under way to stop
	stop()
	if err != nil && ctx.Err() != nil {
		return errors.Join(errors.New("stopped; what was transferred is kept, and the next run goes on from there"), closed)
	}
	if err := errors.Join(err, closed, c.write(d, p, worked)); err != nil {
		return err
	}
	return errors.Join(broken(result), unfinished(d, o, p))
}

// blockedOnly counts the blocked actions of images of which nothing failed: a final
// failure is blocked as well, and would count twice.
func blockedOnly(o reconcile.Observed, p reconcile.Plan) int {
	failed := map[string]bool{}
	for key := range o.Tries {
		failed[key.ID.Name] = true
	}
	n := 0
	for _, a := range p.Actions {
		if a.Kind == reconcile.Blocked && !failed[a.Image] {
			n++
		}
	}
	return n
}

// unfinished says what keeps a run from having been a success. Waits of clean-ups
// do not count, nor does it that there are fewer disks than copies.
func unfinished(d reconcile.Desired, o reconcile.Observed, p reconcile.Plan) error {
	var what []string
	if n := len(o.Tries); n > 0 {
		what = append(what, fmt.Sprintf("%d failed", n))
	}
	if n := blockedOnly(o, p); n > 0 {
		what = append(what, fmt.Sprintf("%d blocked", n))
	}
	if n := d.Missing(o); len(what) == 0 && n > 0 {
		what = append(what, fmt.Sprintf("%d not ready", n))
	}
	if len(what) == 0 && !p.Empty() {
		what = append(what, "more is to be done")
	}
	if len(what) == 0 {
		return nil
	}
	return errors.New("the disks do not match the configuration yet: " + strings.Join(what, ", "))
}
