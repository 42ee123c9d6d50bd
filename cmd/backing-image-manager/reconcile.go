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
	"strings"
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

// convergence is one run of the command reconcile.
type convergence struct {
	nodeFlags
	tokenFile    string
	tls          auth.TLSFiles
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
		Args: exactArgs(),
	}
	c.add(cmd)
	cmd.Flags().BoolVar(&c.dryRun, "dry-run", false, "change nothing, print the plan")
	cmd.Flags().BoolVar(&c.offline, "offline", false, "ask no peer; where nodes are declared, nothing is deleted then")
	cmd.Flags().StringVar(&c.tokenFile, "token-file", "", "`FILE` with the token that the other nodes ask for")
	addTLSFlags(cmd, &c.tls, "`FILE` with the certificate to show to the other nodes, as PEM", "`FILE` with the authority that they have to have their certificates of, as PEM")
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
	report.WriteProblems(c.err, c.configDir, result)
	if len(c.states) > 0 {
		return c.planSaved(ctx, result)
	}
	if c.diffDir != "" {
		return c.compare(ctx, result)
	}
	desired, err := plan.NewDesired(result, c.node, c.disks)
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
	if c.offline && len(result.Config.Nodes) > 0 && desired.Allowed == schema.Everything {
		desired.Allowed, desired.Offline = schema.NoDeletions, true
	}
	if c.dryRun {
		return c.plan(ctx, desired, result)
	}
	return c.converge(ctx, desired, result)
}

// broken is the error of a configuration that is not wholly valid.
func broken(r schema.Result) error {
	mistakes := report.Count(len(r.Errors), "mistake")
	switch {
	case len(r.Errors) == 0:
		return nil
	case r.May == schema.ObserveOnly:
		return fmt.Errorf("the configuration cannot be acted on: it has %s", mistakes)
	}
	return fmt.Errorf("the configuration has %s: nothing is deleted, and broken images are left alone", mistakes)
}

// meet lets r ask the other nodes, unless nobody is to be asked.
func (c *convergence) meet(ctx context.Context, r *reconcile.Reconciler, d plan.Desired) error {
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

func (c *convergence) plan(ctx context.Context, d plan.Desired, result schema.Result) error {
	r := reconcile.New(fetch.Client{AllowAnyFile: true}, slog.New(slog.DiscardHandler), true)
	if err := c.meet(ctx, r, d); err != nil {
		return errors.Join(err, r.Close())
	}
	o := r.Observe(d)
	p := d.Plan(o)
	c.warnOfDisks(o)
	c.warnOfMissing(d, p)
	holds := c.checkPlan(d, o, p)
	if d.Only != nil {
		p = d.Only.Restrict(p)
	}
	if err := errors.Join(holds, c.write(d, p, false), c.save(result, plan.NewSavedPlan([]plan.Desired{d}, o, p)), r.Close()); err != nil {
		return err
	}
	return c.exit(p, result)
}

// exit is how a dry run ends.
func (c *convergence) exit(p plan.Plan, result schema.Result) error {
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
func (c *convergence) write(d plan.Desired, p plan.Plan, worked bool) error {
	summary := ""
	switch {
	case d.Allowed == schema.ObserveOnly:
		summary = "No plan: too much of the configuration is not known."
	case worked && len(p.Actions) == 0:
		summary = "Done. The disks match the configuration."
	case c.dryRun && d.Only != nil && len(p.Actions) == 0:
		summary = "No changes: the saved plan has nothing to do on this node."
	}
	if summary == "" || c.format != "text" && c.format != "markdown" {
		return report.WritePlan(c.out, p, c.format, hasColour(c.out), len(c.states) > 0 && c.everyNode && len(d.Config.Nodes) > 1)
	}
	if c.format == "markdown" {
		summary = "**" + summary + "**"
	}
	_, err := fmt.Fprintln(c.out, summary)
	return err
}

func (c *convergence) warnOfDisks(o plan.Observed) {
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), compareRefs) {
		if problem := o.Disks[ref].Problem; problem != "" {
			fmt.Fprintf(c.err, "warning: disk %s: %s\n", ref, problem)
		}
	}
}

func compareRefs(a, b schema.DiskRef) int { return strings.Compare(a.String(), b.String()) }

func (c *convergence) converge(ctx context.Context, d plan.Desired, result schema.Result) error {
	show := newProgress(c.err)
	r := reconcile.New(fetch.Client{SecretsDir: c.secretsDir, AllowAnyFile: true}, show.logger(), false)
	if err := c.meet(ctx, r, d); err != nil {
		return errors.Join(err, r.Close())
	}
	o := r.Observe(d)
	if err := r.LockedElsewhere(); err != nil {
		return errors.Join(err, r.Close())
	}
	c.warnOfDisks(o)
	now := d.Plan(o)
	if err := c.checkPlan(d, o, now); err != nil {
		return errors.Join(err, r.Close())
	}
	worked := !now.Empty()
	stop := show.watch(r.Transfers)
	o, p, err := r.Converge(ctx, d)
	closed := r.Close() // which waits for what is under way to stop
	stop()
	if err != nil && ctx.Err() != nil {
		return errors.Join(errors.New("stopped; what was transferred is kept, and the next run goes on from there"), closed)
	}
	if err := errors.Join(err, closed, c.write(d, p, worked)); err != nil {
		return err
	}
	if d.Only != nil {
		return unfinishedOf(*d.Only, d, o, p)
	}
	return errors.Join(broken(result), unfinished(d, o, p))
}

// ownFailures are the copies on this node's disks of which something failed.
func ownFailures(d plan.Desired, o plan.Observed) []plan.CopyRef {
	var keys []plan.CopyRef
	for key, t := range o.Failures {
		if key.Disk.Node == d.Node && t.Attempts > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// blockedOnly counts the blocked actions of images of which nothing failed: a final
// failure is blocked as well, and would count twice.
func blockedOnly(d plan.Desired, o plan.Observed, p plan.Plan) int {
	failed := map[string]bool{}
	for _, key := range ownFailures(d, o) {
		failed[key.ID.Name] = true
	}
	n := 0
	for _, a := range p.Actions {
		if a.Op == plan.Blocked && !failed[a.Image] {
			n++
		}
	}
	return n
}

// unfinished says what keeps a run from having been a success. Waits of clean-ups
// do not count, nor does it that there are fewer disks than copies.
func unfinished(d plan.Desired, o plan.Observed, p plan.Plan) error {
	var what []string
	if n := len(ownFailures(d, o)); n > 0 {
		what = append(what, fmt.Sprintf("%d failed", n))
	}
	if n := blockedOnly(d, o, p); n > 0 && len(what) > 0 {
		what = append(what, fmt.Sprintf("%d more are blocked", n)) // the plan counts those that failed as well
	} else if n > 0 {
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

// warnOfMissing tells of what a run would miss on this machine, as far as a look at it
// shows that: a plan does not depend on it, and the run would fail.
func (c *convergence) warnOfMissing(d plan.Desired, p plan.Plan) {
	var said []string
	for _, a := range p.Actions {
		image, declared := d.Config.Images[a.Image]
		if !declared || a.Idle() || a.Node != d.Node {
			continue
		}
		secrets, store := needs(a.Op, image)
		for _, why := range []string{c.missingSecret(secrets), missingStore(store)} {
			if text := fmt.Sprintf("warning: image %s: %s\n", a.Image, why); why != "" && !slices.Contains(said, text) {
				said = append(said, text)
				fmt.Fprint(c.err, text)
			}
		}
	}
}

// needs are the folder of secrets and the backup store that an action goes to.
func needs(kind plan.Op, image schema.Image) (secrets, store string) {
	s := image.Source
	switch {
	case kind == plan.Backup && image.Backup != nil:
		return image.Backup.Credentials, image.Backup.Target
	case kind == plan.Download && s.Download != nil:
		return s.Download.Credentials, ""
	case kind == plan.Restore && s.Restore != nil:
		target, _, _ := backup.ParseURL(s.Restore.BackupURL) // the schema has read it
		return s.Restore.Credentials, target
	case kind == plan.Clone && s.Clone != nil && s.Clone.Encryption != schema.EncryptionIgnore:
		return s.Clone.Secret, ""
	}
	return "", ""
}

func (c *convergence) missingSecret(name string) string {
	switch {
	case name == "":
		return ""
	case c.secretsDir == "":
		return fmt.Sprintf("it needs the secrets %q: give their directory with --secrets-dir", name)
	}
	if _, err := os.Stat(filepath.Join(c.secretsDir, name)); err != nil {
		return fmt.Sprintf("it needs the secrets %q: %v", name, err)
	}
	return ""
}

func missingStore(target string) string {
	u, err := url.Parse(target)
	if err != nil || !slices.Contains([]string{"", "file", "vfs"}, u.Scheme) || u.Path == "" {
		return ""
	}
	if _, err := os.Stat(u.Path); err != nil {
		return fmt.Sprintf("its backup store is missing: %v: mount it there, or make the folder", err)
	}
	return ""
}
