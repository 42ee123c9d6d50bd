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
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/fetch"
	api "github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// convergence is one run of the command reconcile.
type convergence struct {
	nodeFlags
	tokenFile    string
	tls          tlsFlags
	dryRun       bool
	offline      bool
	states       []string
	diffDir      string // of the configuration to compare with
	outFile      string // to save the plan in
	planFile     string // with the plan to execute
	everyNode    bool   // plan for all nodes; --node was not given
	detailedExit bool
	format       string
	out, err     io.Writer
}

func newReconcile() *cobra.Command {
	c := &convergence{}
	cmd := &cobra.Command{
		Use:        "reconcile --config-dir DIR [flags]",
		SuggestFor: []string{"apply", "plan", "diff", "sync"},
		Short:      "Make the disks match the configuration once, or say what that would take",
		Long: `Reads the config directory, looks at the disks of one node, and does the
difference once. What is printed at the end is the plan that is left.

Nothing is waited for. The next run tries again what failed, and begins anew to wait for
a node that does not answer: only a daemon waits long enough to act in its place.

With --dry-run nothing is changed, no origin is asked and no lock is taken: the
plan is printed.

With --state as well no disk is looked at and nobody is asked: the disks are as a
saved "status -o json" has them, and the time is that of the newest one. Given for
every node, or for one that saw the others, it is the plan of the whole cluster, as if
all nodes that answered had just taken the configuration of --config-dir: that the
saved ones had another one keeps nothing. Of a node that several states tell of, its
own counts. A disk is recognised by its node and path. With --node the plan is that of
this node alone. For the whole cluster it is told as well what crosses the network, what
becomes of each disk and image, and what is held or blocked.

With --diff it is told what the configuration says otherwise than another one, and which
disks should have other copies; no state is needed for that, and nothing is done. With
--state as well, it is told apart what the plan does because of the difference and what it
would do anyway.

With --out the plan is saved, with what it was made from. With --plan exactly that is done
which a saved plan says of this node, and what it says will follow, but for clean-ups that
it says wait; and nothing at all when what it was made from has changed: the configuration,
a disk or a copy that it names, or what has to be done.

Exit status: 0 when every copy that is wanted of this node is ready and nothing
failed, or with --dry-run; 1 otherwise; 2 with --dry-run --detailed-exitcode when
the plan is not empty.`,
		Example: `  backing-image-manager reconcile --config-dir config --disk /var/lib/longhorn --dry-run
  backing-image-manager reconcile --config-dir config --node node1
  backing-image-manager reconcile --config-dir config --node node1 --dry-run -o markdown
  backing-image-manager reconcile --config-dir config --dry-run --state node1.json --state node2.json
  backing-image-manager reconcile --config-dir config --diff ../main/config --state status.json -o markdown
  backing-image-manager reconcile --config-dir config --node node1 --dry-run --out plan.json
  backing-image-manager reconcile --config-dir config --node node1 --plan plan.json`,
		Args: exactly(),
	}
	c.add(cmd)
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "change nothing, print the plan")
	cmd.Flags().BoolVar(&c.offline, "offline", false, "ask no peer; where nodes are declared, nothing is deleted then")
	cmd.Flags().StringVar(&c.tokenFile, "token-file", "", "`FILE` with the token that the other nodes ask for")
	c.tls.add(cmd, "`FILE` with the certificate to show to the other nodes, as PEM", "`FILE` with the authority that they have to have their certificates of, as PEM")
	addStateFlag(cmd, &c.states)
	c.addPlanFlags(cmd)
	cmd.Flags().BoolVar(&c.detailedExit, "detailed-exitcode", false, "with --dry-run, exit with 2 when the plan is not empty")
	format := outputFlag(cmd, "text", "json", "yaml", "markdown")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.format, c.out, c.err = format.word, cmd.OutOrStdout(), cmd.ErrOrStderr()
		c.everyNode = c.node == ""
		if err := errors.Join(c.resolve(), c.checkDiff(), c.checkState(), c.checkFiles()); err != nil {
			return err
		}
		if c.detailedExit && !c.dryRun && c.diffDir == "" {
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
	result.Warnings = result.WarningsAt(time.Now())
	printProblems(c.err, c.configDir, result)
	if len(c.states) > 0 {
		return c.planSaved(ctx, result)
	}
	if c.diffDir != "" {
		return c.compare(ctx, result)
	}
	desired, err := reconcile.Desire(result, c.node, c.disks)
	if err != nil {
		return errors.Join(err, broken(result))
	}
	if c.planFile != "" {
		plan, err := c.readPlan()
		if err != nil {
			return err
		}
		desired.Only = &plan
	}
	if c.offline && len(result.Config.Nodes) > 0 && desired.May == schema.Everything {
		desired.May, desired.Offline = schema.NoDeletions, true
	}
	if c.dryRun {
		return c.plan(ctx, desired, result)
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

// meet lets r ask the other nodes, unless nobody is to be asked.
func (c *convergence) meet(ctx context.Context, r *reconcile.Reconciler, d reconcile.Desired) error {
	if c.offline {
		return nil
	}
	g, err := newGuard(slog.New(slog.DiscardHandler), c.tokenFile, c.tls)
	if err != nil {
		return err
	}
	r.Join(api.NewClient(g.credentials()))
	r.Meet(ctx, d)
	return nil
}

func (c *convergence) plan(ctx context.Context, d reconcile.Desired, result schema.Result) error {
	r := reconcile.New(fetch.Client{AnyFile: true}, slog.New(slog.DiscardHandler), true)
	if err := c.meet(ctx, r, d); err != nil {
		return errors.Join(err, r.Close())
	}
	o := r.Look(d)
	p := d.Plan(o)
	c.warnOfDisks(o)
	c.warnOfMissing(d, p)
	holds := c.checkPlan(d, o, p)
	if d.Only != nil {
		p = d.Only.Of(p)
	}
	if err := errors.Join(holds, c.write(d, p, false), c.save(result, reconcile.Save([]reconcile.Desired{d}, o, p)), r.Close()); err != nil {
		return err
	}
	return c.exit(p, result)
}

// exit is how a dry run ends.
func (c *convergence) exit(p reconcile.Plan, result schema.Result) error {
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
	case c.dryRun && d.Only != nil && len(p.Actions) == 0:
		summary = "No changes: the saved plan has nothing to do on this node."
	}
	if summary == "" || c.format != "text" && c.format != "markdown" {
		return writePlan(c.out, p, c.format, colourful(c.out), len(c.states) > 0 && c.everyNode && len(d.Config.Nodes) > 1)
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
