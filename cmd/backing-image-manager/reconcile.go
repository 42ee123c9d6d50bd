package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// reconcileCmd is one run of the command reconcile.
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
	indexDir     string // with indexes, to estimate downloads
	everyNode    bool   // --node is not given: --state plans for all nodes
	detailedExit bool
	snapshot     configdir.Snapshot // of the config directory
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

A plan requests nothing from an upstream. It shows how much a download by an index
transfers only if the index is a local file, or a file in --index-dir.

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
		if err := errors.Join(c.resolve(), c.check()); err != nil {
			return err
		}
		return c.run(cmd.Context())
	}
	return cmd
}

// check checks which flags are combined.
func (c *reconcileCmd) check() error {
	saved, diff := len(c.states) > 0, c.diffDir != ""
	switch {
	case diff && (len(c.disks) > 0 || c.offline):
		return errors.New("--diff compares configurations without disks and peers: omit --disk and --offline")
	case saved && !c.dryRun && !diff:
		return errors.New("--state needs --dry-run or --diff: a real run reads the disks")
	case saved && len(c.disks) > 0:
		return errors.New("--state and --disk are mutually exclusive: the disks are those of the saved state")
	case saved && c.offline:
		return errors.New("--state and --offline are mutually exclusive: --state never queries peers")
	case c.outFile != "" && c.planFile != "":
		return errors.New("--out and --plan are mutually exclusive: one saves a plan, the other executes one")
	case c.outFile != "" && (!c.dryRun || diff && !saved):
		return errors.New("--out saves the plan of a dry run: add --dry-run, and with --diff also --state")
	case c.indexDir != "" && (!c.dryRun || diff) && !saved:
		return errors.New("--index-dir is for a plan: add --dry-run or --state")
	case c.planFile != "" && saved:
		return errors.New("--plan and --state are mutually exclusive: a saved plan is executed on real disks")
	case c.planFile != "" && diff:
		return errors.New("--plan and --diff are mutually exclusive: --diff executes nothing")
	case c.detailedExit && !c.dryRun && !diff:
		return errors.New("--detailed-exitcode is for --dry-run: a real run exits with 0 or 1")
	}
	return nil
}

func (c *reconcileCmd) run(ctx context.Context) error {
	snapshot, err := readConfig(ctx, c.err, c.configDir)
	if err != nil {
		return err
	}
	if c.commits != nil {
		if _, err := c.commits.Verify(ctx, snapshot); err != nil {
			return err
		}
	}
	c.snapshot = snapshot
	result := load.NewLoader().Load(ctx, snapshot)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	result.Warnings = result.WarningsAt(time.Now())
	report.WriteProblems(c.err, c.configDir, result)
	if len(c.states) > 0 {
		return c.planSaved(ctx, result)
	}
	if c.diffDir != "" {
		return c.compare(ctx, result)
	}
	desired, err := plan.NewDesired(result.Loaded, c.node, c.disks)
	if err != nil {
		return errors.Join(err, configError(result))
	}
	desired.Removed = plan.AlwaysConfirmed
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
	return c.onDisks(ctx, desired, result)
}

// configError is the error for a configuration with errors, or nil.
func configError(r load.Result) error {
	n := report.Count(len(r.Errors), "error")
	switch {
	case len(r.Errors) == 0:
		return nil
	case r.Allowed == schema.ObserveOnly:
		return fmt.Errorf("the configuration cannot be applied: it has %s", n)
	}
	return fmt.Errorf("the configuration has %s: nothing is deleted, and invalid images are not changed", n)
}

// peers returns the client for the other nodes. With --offline, it is nil.
func (c *reconcileCmd) peers() (*peer.Client, error) {
	if c.offline {
		return nil, nil
	}
	credentials, err := auth.Load(slog.New(slog.DiscardHandler), c.tokenFile, c.tls)
	if err != nil {
		return nil, err
	}
	return peer.NewClient(credentials.ForPeers()), nil
}

// onDisks plans for the disks of this node, and executes the plan unless it is a dry run.
func (c *reconcileCmd) onDisks(ctx context.Context, d plan.Desired, result load.Result) (err error) {
	bars, log := newProgress(c.err), slog.New(slog.DiscardHandler)
	client := fetch.Client{AllowAnyFile: true}
	if !c.dryRun {
		log = bars.logger()
		client.SecretsDir, client.KeysDir, client.Warn = c.secretsDir, c.keysDir, logWarning(log)
	}
	peers, err := c.peers()
	if err != nil {
		return err
	}
	r := reconcile.New(client, peers, log, c.dryRun)
	open := true
	defer func() {
		if open {
			err = errors.Join(err, r.Close())
		}
	}()
	r.WaitForPeers(ctx, d)
	o := r.Observe(d)
	if !c.dryRun {
		err = r.LockedElsewhere()
	}
	if err == nil && c.commits != nil {
		err = c.commits.CheckCommit(ctx, c.snapshot, r.Folders(), !c.dryRun)
	}
	if err != nil {
		return err
	}
	c.warnAboutDisks(o)
	p := plan.NewRound(d, o).Plan()
	if c.dryRun {
		return c.printPlan(d, o, c.estimator(d.Config).Estimate(ctx, d, o, p, r.Folders()), result)
	}
	if err := c.checkPlan(d, o, p); err != nil {
		return err
	}
	worked := !p.Empty()
	stop := bars.watch(r.Transfers)
	o, p, err = r.Converge(ctx, d)
	open = false
	closed := r.Close() // waits until all jobs have stopped
	stop()
	if err != nil && ctx.Err() != nil {
		return errors.Join(errors.New("stopped; incomplete transfers are kept, and the next run resumes them"), closed)
	}
	if err := errors.Join(err, closed, c.write(d, o, p, worked)); err != nil {
		return err
	}
	if d.Only != nil {
		return plan.CheckExecuted(*d.Only, d, o, p)
	}
	return errors.Join(configError(result), plan.CheckConverged(d, o, p))
}

// printPlan prints, checks and saves the plan of a dry run on the disks of this node.
func (c *reconcileCmd) printPlan(d plan.Desired, o plan.Observed, p plan.Plan, result load.Result) error {
	stale := c.checkPlan(d, o, p)
	if d.Only != nil {
		p = d.Only.Restrict(p)
	}
	if err := errors.Join(stale, c.write(d, o, p, false), c.save(result, plan.NewSavedPlan([]plan.Desired{d}, o, p))); err != nil {
		return err
	}
	return c.exit(p, result)
}

// exit returns the error that decides the exit code of a dry run. nil means 0.
func (c *reconcileCmd) exit(p plan.Plan, result load.Result) error {
	if err := configError(result); err != nil {
		return err
	}
	if c.detailedExit && !p.Empty() {
		return &exitError{code: 2}
	}
	return nil
}

// write prints a plan. The argument worked reports whether a run has executed an action.
func (c *reconcileCmd) write(d plan.Desired, o plan.Observed, p plan.Plan, worked bool) error {
	style := c.style(len(c.states) > 0 && c.everyNode && len(d.Config.Nodes) > 1)
	if !c.dryRun {
		d.Only = nil // after a run, the outcome is about the disks, and not about the saved plan
	}
	style.Outcome = report.Outcome(d, o, p, worked)
	return report.WritePlan(c.out, p, style)
}

// style returns the style of the plan for one node or for a cluster.
func (c *reconcileCmd) style(cluster bool) report.Style {
	return report.Style{Format: c.format, Colour: hasColour(c.out), Cluster: cluster}
}

func (c *reconcileCmd) warnAboutDisks(o plan.Observed) {
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		seen := o.Disks[ref]
		seen.UsageUnknown = "" // the plan has this fault as the reason of each copy
		for _, fault := range seen.Faults() {
			report.WriteLine(c.err, "warning: disk %s: %s", ref, fault)
		}
	}
}

// addPlanFlags adds the flags for saved states, saved plans and comparisons.
func (c *reconcileCmd) addPlanFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&c.states, "state", nil, "plan against the saved output of status -o json in `FILE`; repeat it for each node")
	flags.StringVar(&c.diffDir, "diff", "", "print the differences from the configuration in `OLD_DIR`")
	flags.StringVar(&c.indexDir, "index-dir", "", "look for index files in `DIR`, by the last elements of their addresses, to compute the download sizes of a plan")
	flags.StringVar(&c.outFile, "out", "", "with --dry-run, save the plan in `FILE`")
	flags.StringVar(&c.planFile, "plan", "", "execute the plan that --out saved in `FILE`")
	complete(cmd, (*cobra.Command).MarkFlagDirname, "diff", "index-dir")
	complete(cmd, completeJSON, "state", "out", "plan")
}

// planSaved prints the plan against saved states.
func (c *reconcileCmd) planSaved(ctx context.Context, result load.Result) error {
	saved, err := readStates(c.states)
	if err != nil {
		return err
	}
	only := c.node
	if c.everyNode {
		only = ""
	}
	nodes, err := saved.Desired(result.Loaded, only)
	if err != nil {
		return errors.Join(err, configError(result))
	}
	for _, name := range saved.Unused(nodes[0]) {
		report.WriteLine(c.err, "warning: the state of node %s is not used: the configuration does not declare the node", name)
	}
	cluster := saved.Cluster(nodes[0])
	problems := cluster.Problems(nodes)
	for _, ref := range slices.SortedFunc(maps.Keys(problems), ident.DiskRef.Compare) {
		report.WriteLine(c.err, "warning: disk %s: %s", ref, problems[ref])
	}
	var old load.Result
	if c.diffDir != "" && configError(result) == nil {
		if old, err = c.loadOld(ctx); err != nil {
			return err
		}
	}
	e := c.estimator(result.Config, old.Config)
	p := e.EstimateSaved(ctx, cluster, result.Config, old.Config, cluster.Plan(nodes))
	if err := c.save(result, plan.NewSavedPlan(nodes, plan.Observed{Disks: cluster.Disks}, p)); err != nil {
		return err
	}
	if !c.everyNode || nodes[0].Allowed == schema.ObserveOnly {
		err := c.write(nodes[0], plan.Observed{}, p, false)
		if c.format == report.Markdown {
			err = errors.Join(err, report.WriteErrors(c.out, result.Errors))
		}
		return errors.Join(err, c.exit(p, result))
	}
	cp := report.NewClusterPlan(cluster, nodes[0], p)
	cp.Errors = result.Errors
	if c.diffDir != "" && configError(result) == nil {
		before, err := saved.Desired(old.Loaded, "")
		if err != nil {
			return fmt.Errorf("plan for --diff %s: %w", c.diffDir, err)
		}
		cluster := saved.Cluster(before[0])
		cp.Compare(report.NewClusterPlan(cluster, before[0], cluster.Plan(before)))
	}
	return errors.Join(cp.Write(c.out, c.style(len(nodes) > 1)), c.exit(p, result))
}

// estimator returns the Estimator for images of these configurations.
func (c *reconcileCmd) estimator(configs ...schema.Config) forecast.Estimator {
	warn := func(err error) { report.WriteLine(c.err, "warning: %v", err) }
	return forecast.NewEstimator(&fetch.Client{AllowAnyFile: true}, c.indexDir, warn, configs...)
}

// readStates reads the saved states in the files of --state.
func readStates(files []string) (*status.SavedCluster, error) {
	saved := &status.SavedCluster{}
	for _, file := range files {
		err := saved.AddFile(file)
		if errors.Is(err, syscall.EISDIR) {
			return nil, fmt.Errorf("--state %s is a directory: name each of its status documents with a separate --state", file)
		}
		if _, unread := errors.AsType[*fs.PathError](err); unread {
			return nil, fmt.Errorf("read --state: %w", err)
		}
		if err != nil {
			return nil, fmt.Errorf("--state %s is %w", file, err)
		}
	}
	return saved, nil
}

// save writes the plan to the file of --out, if it is given. The file is complete or does not
// change.
func (c *reconcileCmd) save(result load.Result, saved plan.SavedPlan) error {
	if c.outFile == "" {
		return nil
	}
	if result.Digest == "" {
		return errors.New("the plan is not saved: first correct the errors of the configuration")
	}
	var text bytes.Buffer
	if err := report.WriteJSON(&text, saved); err != nil {
		return fmt.Errorf("save plan: %w", err)
	}
	if err := atomicfile.WriteAt(c.outFile, text.Bytes(), 0o644); err != nil {
		return fmt.Errorf("save plan: %w", err)
	}
	return nil
}

func (c *reconcileCmd) readPlan() (saved plan.SavedPlan, err error) {
	err = status.ReadSavedFile(c.planFile, &saved)
	if _, unread := errors.AsType[*fs.PathError](err); unread {
		return saved, fmt.Errorf("read --plan: %w", err)
	}
	if err == nil {
		err = saved.Check()
	}
	if err != nil {
		return saved, fmt.Errorf("--plan %s is not a plan as --out saves it: %w", c.planFile, err)
	}
	return saved, nil
}

// checkPlan checks the preconditions of the plan of --plan, if it is given.
func (c *reconcileCmd) checkPlan(d plan.Desired, o plan.Observed, now plan.Plan) error {
	if d.Only == nil {
		return nil
	}
	if err := d.Only.CheckAgainst(d, o, now); err != nil {
		return errors.Join(fmt.Errorf("plan %s is stale; nothing was changed: create a new one with --dry-run --out", c.planFile), err)
	}
	return nil
}

func (c *reconcileCmd) loadOld(ctx context.Context) (load.Result, error) {
	old, err := loadConfig(ctx, c.err, c.diffDir)
	if err != nil {
		return old, fmt.Errorf("read --diff: %w", err)
	}
	if n := len(old.Errors); n > 0 {
		report.WriteLine(c.err, "warning: %s has %s: images that are invalid there count as added", c.diffDir, report.Count(n, "error"))
	}
	return old, nil
}

// compare prints the differences of two configurations.
func (c *reconcileCmd) compare(ctx context.Context, result load.Result) error {
	if err := configError(result); err != nil {
		return err // an invalid image would count as removed
	}
	old, err := c.loadOld(ctx)
	if err != nil {
		return err
	}
	d := report.NewDifference(old.Config, result.Config)
	if err := report.WriteDifference(c.out, d, c.format); err != nil {
		return err
	}
	if c.detailedExit && !d.Empty() {
		return &exitError{code: 2}
	}
	return nil
}
