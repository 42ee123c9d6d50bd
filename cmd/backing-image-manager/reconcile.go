package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/spf13/cobra"
)

// reconcileCmd is one run of the command reconcile. The flags for saved states, saved plans
// and comparisons are in reconcile_saved.go.
type reconcileCmd struct {
	nodeFlags
	tokenFile    string
	tls          auth.TLSFiles
	dryRun       bool
	offline      bool
	states       []string
	diffDir      string // the configuration to compare with
	outFile      string // to save the plan in
	planFile     string // with the plan to execute
	everyNode    bool   // --node is not given: --state plans for all nodes
	detailedExit bool
	format       report.Format
	out, err     io.Writer
}

func newReconcile() *cobra.Command {
	c := &reconcileCmd{}
	cmd := &cobra.Command{
		Use:        "reconcile --config-dir DIR [flags]",
		SuggestFor: []string{"apply", "plan", "diff", "sync"},
		Short:      "Bring the disks into the declared state once, or print the plan for it",
		Long: `Reads the config directory, observes the disks of one node and the peers, executes the
plan, and prints the plan that remains. It never waits: a later run does the rest.

--dry-run prints the plan and changes nothing. --state plans against saved output of
"status -o json" instead of disks and peers: for the whole cluster, or for --node.
--diff prints how the configuration differs from another one; with --state, also which
actions the change causes. --out saves a plan. --plan executes the part of a saved plan
that is for this node, unless the preconditions of the plan have changed.

Exit status: 0 if every copy desired on this node is ready and nothing failed, or after
a dry run; 1 otherwise; 2 with --dry-run --detailed-exitcode if the plan is not empty.`,
		Example: `  backing-image-manager reconcile --config-dir config --disk /var/lib/longhorn --dry-run
  backing-image-manager reconcile --config-dir config --dry-run --state node1.json --state node2.json
  backing-image-manager reconcile --config-dir config --diff ../main/config --state status.json -o markdown
  backing-image-manager reconcile --config-dir config --node node1 --dry-run --out plan.json
  backing-image-manager reconcile --config-dir config --node node1 --plan plan.json`,
		Args: exactArgs(),
	}
	c.add(cmd)
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "print the plan and change nothing")
	cmd.Flags().BoolVar(&c.offline, "offline", false, "query no peer; if nodes are declared, delete nothing")
	cmd.Flags().StringVar(&c.tokenFile, "token-file", "", "`FILE` with the token to send to peers")
	addTLSFlags(cmd, &c.tls, "PEM `FILE` with the client certificate for peers", "PEM `FILE` with the authority of the peers' certificates")
	c.addPlanFlags(cmd)
	cmd.Flags().BoolVar(&c.detailedExit, "detailed-exitcode", false, "with --dry-run, exit with 2 if the plan is not empty")
	format := outputFlag(cmd, report.Text, report.JSON, report.YAML, report.Markdown)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c.format, c.out, c.err = format.value, cmd.OutOrStdout(), cmd.ErrOrStderr()
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

func (c *reconcileCmd) run(ctx context.Context) error {
	result, err := load(ctx, c.err, c.configDir)
	if err != nil {
		return err
	}
	result.Warnings = result.WarningsAt(time.Now())
	report.WriteProblems(c.err, c.configDir, result)
	if len(c.states) > 0 {
		return c.planSaved(ctx, result)
	}
	if c.diffDir != "" {
		return c.compare(ctx, result)
	}
	desired, err := plan.NewDesired(result, c.node, c.disks)
	if err != nil {
		return errors.Join(err, configError(result))
	}
	if c.planFile != "" {
		saved, err := c.readPlan()
		if err != nil {
			return err
		}
		desired.Only = &saved
	}
	if c.offline && len(result.Config.Nodes) > 0 && desired.Allowed == schema.Everything {
		desired.Allowed, desired.Offline = schema.NoDeletions, true
	}
	if c.dryRun {
		return c.printPlan(ctx, desired, result)
	}
	return c.converge(ctx, desired, result)
}

// configError is the error for a configuration with errors, or nil.
func configError(r schema.Result) error {
	n := report.Count(len(r.Errors), "error")
	switch {
	case len(r.Errors) == 0:
		return nil
	case r.Allowed == schema.ObserveOnly:
		return fmt.Errorf("the configuration cannot be applied: it has %s", n)
	}
	return fmt.Errorf("the configuration has %s: nothing is deleted, and invalid images are not changed", n)
}

// connect lets r query the peers, unless --offline is given.
func (c *reconcileCmd) connect(ctx context.Context, r *reconcile.Reconciler, d plan.Desired) error {
	if c.offline {
		return nil
	}
	credentials, err := auth.Load(slog.New(slog.DiscardHandler), c.tokenFile, c.tls)
	if err != nil {
		return err
	}
	r.SetPeers(peer.NewClient(credentials.ForPeers()))
	r.WaitForPeers(ctx, d)
	return nil
}

// printPlan executes a dry run on the disks of this node.
func (c *reconcileCmd) printPlan(ctx context.Context, d plan.Desired, result schema.Result) error {
	r := reconcile.New(fetch.Client{AllowAnyFile: true}, slog.New(slog.DiscardHandler), true)
	if err := c.connect(ctx, r, d); err != nil {
		return errors.Join(err, r.Close())
	}
	o := r.Observe(d)
	p := d.Plan(o)
	c.warnAboutDisks(o)
	c.warnMissing(d, p)
	stale := c.checkPlan(d, o, p)
	if d.Only != nil {
		p = d.Only.Restrict(p)
	}
	if err := errors.Join(stale, c.write(d, p, false), c.save(result, plan.NewSavedPlan([]plan.Desired{d}, o, p)), r.Close()); err != nil {
		return err
	}
	return c.exit(p, result)
}

// exit returns the error that ends a dry run.
func (c *reconcileCmd) exit(p plan.Plan, result schema.Result) error {
	if err := configError(result); err != nil {
		return err
	}
	if c.detailedExit && !p.Empty() {
		return &exitError{code: 2}
	}
	return nil
}

// write prints a plan. The text of an empty plan depends on its cause. worked is true after a run
// that executed an action.
func (c *reconcileCmd) write(d plan.Desired, p plan.Plan, worked bool) error {
	summary := ""
	switch {
	case d.Allowed == schema.ObserveOnly:
		summary = "No plan: too much of the configuration is unknown."
	case worked && len(p.Actions) == 0:
		summary = "Done. The disks match the configuration."
	case c.dryRun && d.Only != nil && len(p.Actions) == 0:
		summary = "No changes: the saved plan has no actions for this node."
	}
	if summary == "" || c.format != report.Text && c.format != report.Markdown {
		return report.WritePlan(c.out, p, c.style(len(c.states) > 0 && c.everyNode && len(d.Config.Nodes) > 1))
	}
	if c.format == report.Markdown {
		summary = "**" + summary + "**"
	}
	_, err := fmt.Fprintln(c.out, summary)
	return err
}

// style returns the style of the plan for one node or for a cluster.
func (c *reconcileCmd) style(cluster bool) report.Style {
	return report.Style{Format: c.format, Colour: hasColour(c.out), Cluster: cluster}
}

func (c *reconcileCmd) warnAboutDisks(o plan.Observed) {
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), plan.CompareDisks) {
		seen := o.Disks[ref]
		seen.UsageUnknown = "" // the plan says it for each copy
		for _, fault := range seen.Faults() {
			report.WriteLine(c.err, "warning: disk %s: %s", ref, fault)
		}
	}
}

// converge executes the plan until nothing is left that can be done now.
func (c *reconcileCmd) converge(ctx context.Context, d plan.Desired, result schema.Result) error {
	bars := newProgress(c.err)
	r := reconcile.New(fetch.Client{SecretsDir: c.secretsDir, AllowAnyFile: true}, bars.logger(), false)
	if err := c.connect(ctx, r, d); err != nil {
		return errors.Join(err, r.Close())
	}
	o := r.Observe(d)
	if err := r.LockedElsewhere(); err != nil {
		return errors.Join(err, r.Close())
	}
	c.warnAboutDisks(o)
	p := d.Plan(o)
	if err := c.checkPlan(d, o, p); err != nil {
		return errors.Join(err, r.Close())
	}
	worked := !p.Empty()
	stop := bars.watch(r.Transfers)
	o, p, err := r.Converge(ctx, d)
	closed := r.Close() // waits until all jobs have stopped
	stop()
	if err != nil && ctx.Err() != nil {
		return errors.Join(errors.New("stopped; incomplete transfers are kept, and the next run resumes them"), closed)
	}
	if err := errors.Join(err, closed, c.write(d, p, worked)); err != nil {
		return err
	}
	if d.Only != nil {
		return plan.CheckExecuted(*d.Only, d, o, p)
	}
	return errors.Join(configError(result), plan.CheckConverged(d, o, p))
}

// warnMissing warns about credentials and backup stores that this machine lacks. The plan
// does not depend on them, but its actions would fail.
func (c *reconcileCmd) warnMissing(d plan.Desired, p plan.Plan) {
	var written []string
	for _, a := range p.Actions {
		image, declared := d.Config.Images[a.Image]
		if !declared || a.Idle() || a.Node != d.Node {
			continue
		}
		for _, err := range c.checkRequirements(a.Op, image) {
			if text := fmt.Sprintf("warning: image %s: %v", a.Image, err); !slices.Contains(written, text) {
				written = append(written, text)
				report.WriteLine(c.err, "%s", text)
			}
		}
	}
}

// checkRequirements checks that the credentials and the backup store of an action exist.
func (c *reconcileCmd) checkRequirements(op plan.Op, image schema.Image) (missing []error) {
	add := func(err error) {
		if err != nil {
			missing = append(missing, err)
		}
	}
	s := image.Source
	switch {
	case op == plan.Backup && image.Backup != nil:
		add(c.checkSecret(image.Backup.Credentials))
		add(checkStore(image.Backup.Target))
	case op == plan.Download && s.Download != nil:
		add(c.checkSecret(s.Download.Credentials))
	case op == plan.Restore && s.Restore != nil:
		add(c.checkSecret(s.Restore.Credentials))
		target, _, _ := backup.ParseURL(s.Restore.BackupURL) // the schema has checked it
		add(checkStore(target))
	case op == plan.Clone && s.Clone != nil && s.Clone.Encryption != schema.EncryptionIgnore:
		add(c.checkSecret(s.Clone.Secret))
	}
	return missing
}

// checkSecret checks that a folder of credentials exists. Without a name, none is used.
func (c *reconcileCmd) checkSecret(name string) error {
	switch {
	case name == "":
		return nil
	case c.secretsDir == "":
		return fmt.Errorf("it needs the credentials %q: name their directory with --secrets-dir", name)
	}
	if _, err := os.Stat(filepath.Join(c.secretsDir, name)); err != nil {
		return fmt.Errorf("it needs the credentials %q: %w", name, err)
	}
	return nil
}

// checkStore checks a backup target that is a folder of this machine.
func checkStore(target string) error {
	u, err := url.Parse(target)
	if err != nil || !slices.Contains([]string{"", "file", "vfs"}, u.Scheme) || u.Path == "" {
		return nil
	}
	if _, err := os.Stat(u.Path); err != nil {
		return fmt.Errorf("its backup store is missing: %w: mount it there, or make the folder", err)
	}
	return nil
}
