package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/spf13/cobra"
)

// addPlanFlags adds the flags for saved states, saved plans and comparisons.
func (c *reconcileCmd) addPlanFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&c.states, "state", nil, "plan against the saved output of status -o json in `FILE`; may be repeated, one for each node")
	flags.StringVar(&c.diffDir, "diff", "", "print the differences from the configuration in `OLD_DIR`")
	flags.StringVar(&c.outFile, "out", "", "with --dry-run, save the plan in `FILE`")
	flags.StringVar(&c.planFile, "plan", "", "execute the plan that --out saved in `FILE`")
	err := errors.Join(cmd.MarkFlagFilename("state", "json"), cmd.MarkFlagDirname("diff"), cmd.MarkFlagFilename("out", "json"), cmd.MarkFlagFilename("plan", "json"))
	if err != nil {
		panic("mark flags of reconcile: " + err.Error())
	}
}

// checkState checks which flags are combined with --state.
func (c *reconcileCmd) checkState() error {
	switch {
	case len(c.states) == 0:
		return nil
	case !c.dryRun && c.diffDir == "":
		return errors.New("--state is for --dry-run: a real run needs the disks")
	case len(c.disks) > 0:
		return errors.New("--state and --disk are mutually exclusive: the disks are those of the saved state")
	case c.offline:
		return errors.New("--state and --offline are mutually exclusive: --state never queries peers")
	}
	return nil
}

// planSaved prints the plan against saved states.
func (c *reconcileCmd) planSaved(ctx context.Context, result schema.Result) error {
	saved, err := readStates(c.states)
	if err != nil {
		return err
	}
	nodes, err := c.savedNodes(saved, result)
	if err != nil {
		return errors.Join(err, configError(result))
	}
	for _, name := range saved.Unused(nodes[0]) {
		report.WriteLine(c.err, "warning: the state of node %s is not used: the configuration does not declare it", name)
	}
	cluster := saved.Cluster(nodes[0])
	problems := cluster.Problems(nodes)
	for _, ref := range slices.SortedFunc(maps.Keys(problems), plan.CompareDisks) {
		report.WriteLine(c.err, "warning: disk %s: %s", ref, problems[ref])
	}
	p := cluster.Plan(nodes)
	if err := c.save(result, cluster.Save(nodes, p)); err != nil {
		return err
	}
	if !c.everyNode || nodes[0].Allowed == schema.ObserveOnly {
		return errors.Join(c.write(nodes[0], p, false), c.writeErrors(result), c.exit(p, result))
	}
	cp := report.NewClusterPlan(forecast.New(cluster, nodes[0], p), p)
	cp.Errors = result.Errors
	if c.diffDir != "" && configError(result) == nil {
		old, err := c.loadOld(ctx)
		if err != nil {
			return err
		}
		oldPlan, oldRisk, err := c.planOld(saved, old)
		if err != nil {
			return err
		}
		forecastOf := func(part plan.Plan) forecast.Fleet { return forecast.New(cluster, nodes[0], part) }
		cp.Compare(report.NewDifference(old.Config, result.Config), oldPlan, oldRisk, forecastOf)
	}
	return errors.Join(cp.Write(c.out, c.style(len(nodes) > 1)), c.exit(p, result))
}

// savedNodes returns the desired states of the nodes to plan for: of all declared nodes, or of
// --node. If no nodes are declared, it is the node of the saved state.
func (c *reconcileCmd) savedNodes(saved *status.SavedCluster, result schema.Result) ([]plan.Desired, error) {
	names := slices.Sorted(maps.Keys(result.Config.Nodes))
	var paths []string
	if len(names) == 0 {
		names = saved.Nodes()
		if len(names) > 1 {
			return nil, fmt.Errorf("the configuration declares no nodes, so that each node is on its own: give one --state, not %d", len(names))
		}
		paths = saved.Paths(names[0])
	}
	if !c.everyNode {
		names = []string{c.node}
	}
	d, err := plan.NewDesired(result, names[0], paths)
	if err != nil {
		return nil, err
	}
	nodes := make([]plan.Desired, len(names))
	for i, name := range names {
		nodes[i] = d // a copy shares the cache of ranked disks
		nodes[i].Node = name
	}
	return nodes, nil
}

// readStates reads saved states, each of another node.
func readStates(files []string) (*status.SavedCluster, error) {
	saved := &status.SavedCluster{}
	for _, file := range files {
		err := saved.AddFile(file)
		if _, unread := errors.AsType[*fs.PathError](err); unread {
			return nil, fmt.Errorf("read --state: %w", err)
		}
		if err != nil {
			return nil, fmt.Errorf("--state %s is %w", file, err)
		}
	}
	return saved, nil
}

// checkFiles checks which flags are combined with --out and --plan.
func (c *reconcileCmd) checkFiles() error {
	switch {
	case c.outFile != "" && c.planFile != "":
		return errors.New("--out and --plan are mutually exclusive: one saves a plan, the other executes one")
	case c.outFile != "" && (!c.dryRun || c.diffDir != "" && len(c.states) == 0):
		return errors.New("--out is for --dry-run, with or without --state: it saves the plan that is printed")
	case c.planFile != "" && len(c.states) > 0:
		return errors.New("--plan and --state are mutually exclusive: a saved plan is executed on real disks")
	case c.planFile != "" && c.diffDir != "":
		return errors.New("--plan and --diff are mutually exclusive")
	}
	return nil
}

// save writes the plan to the file of --out, if it is given. The file is complete or does not
// change.
func (c *reconcileCmd) save(result schema.Result, saved plan.SavedPlan) error {
	if c.outFile == "" {
		return nil
	}
	if result.Digest == "" {
		return errors.New("the plan is not saved: the configuration has errors")
	}
	var text bytes.Buffer
	if err := report.WriteJSON(&text, saved); err != nil {
		return fmt.Errorf("save plan: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(c.outFile), ".plan-*")
	if err != nil {
		return fmt.Errorf("save plan: %w", err)
	}
	_, err = f.Write(text.Bytes())
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), c.outFile)
	}
	if err != nil {
		return fmt.Errorf("save plan: %w", errors.Join(err, os.Remove(f.Name())))
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

// checkDiff checks which flags are combined with --diff.
func (c *reconcileCmd) checkDiff() error {
	if c.diffDir != "" && (len(c.disks) > 0 || c.offline) {
		return errors.New("--diff compares configurations without disks and peers: omit --disk and --offline")
	}
	return nil
}

func (c *reconcileCmd) loadOld(ctx context.Context) (schema.Result, error) {
	old, err := load(ctx, c.err, c.diffDir)
	if err != nil {
		return old, fmt.Errorf("read --diff: %w", err)
	}
	if n := len(old.Errors); n > 0 {
		report.WriteLine(c.err, "warning: %s has %s: images that are invalid there count as added", c.diffDir, report.Count(n, "error"))
	}
	return old, nil
}

// compare prints the differences of two configurations.
func (c *reconcileCmd) compare(ctx context.Context, result schema.Result) error {
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

// planOld returns the plan of the old configuration against the same states, and its risk.
func (c *reconcileCmd) planOld(saved *status.SavedCluster, old schema.Result) (plan.Plan, forecast.Risk, error) {
	nodes, err := c.savedNodes(saved, old)
	if err != nil {
		return plan.Plan{}, forecast.Risk{}, fmt.Errorf("plan for --diff %s: %w", c.diffDir, err)
	}
	cluster := saved.Cluster(nodes[0])
	p := cluster.Plan(nodes)
	return p, forecast.New(cluster, nodes[0], p).Risk, nil
}

// writeErrors adds the errors of a configuration without a plan to a Markdown comment.
func (c *reconcileCmd) writeErrors(result schema.Result) error {
	if c.format != report.Markdown {
		return nil
	}
	return report.WriteErrors(c.out, result.Errors)
}
