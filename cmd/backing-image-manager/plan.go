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

func addStateFlag(cmd *cobra.Command, states *[]string) {
	cmd.Flags().StringArrayVar(states, "state", nil, "with --dry-run, plan against the saved status -o json in `FILE` instead of disks; may be repeated, one for each node")
	if err := cmd.MarkFlagFilename("state", "json"); err != nil {
		panic("mark --state: " + err.Error())
	}
}

// checkState refuses what makes no sense with --state.
func (c *convergence) checkState() error {
	switch {
	case len(c.states) == 0:
		return nil
	case !c.dryRun && c.diffDir == "":
		return errors.New("--state is for --dry-run: a real run works on real disks")
	case len(c.disks) > 0:
		return errors.New("--state and --disk exclude each other: a saved state has its disks")
	case c.offline:
		return errors.New("--state and --offline exclude each other: a saved state asks nobody anyway")
	}
	return nil
}

// planSaved prints the plan for nodes as they were.
func (c *convergence) planSaved(ctx context.Context, result schema.Result) error {
	saved, err := readStates(c.states)
	if err != nil {
		return err
	}
	nodes, err := c.savedNodes(saved, result)
	if err != nil {
		return errors.Join(err, broken(result))
	}
	for _, name := range saved.Unused(nodes[0]) {
		fmt.Fprintf(c.err, "warning: the state of node %s is not used: the configuration does not declare it\n", name)
	}
	cluster := saved.Cluster(nodes[0])
	problems := cluster.Problems(nodes)
	for _, ref := range slices.SortedFunc(maps.Keys(problems), compareRefs) {
		fmt.Fprintf(c.err, "warning: disk %s: %s\n", ref, problems[ref])
	}
	p := cluster.Plan(nodes)
	if err := c.save(result, cluster.Save(nodes, p)); err != nil {
		return err
	}
	if !c.everyNode || nodes[0].Allowed == schema.ObserveOnly {
		return errors.Join(c.write(nodes[0], p, false), c.writeErrors(result), c.exit(p, result))
	}
	f := report.NewClusterPlan(forecast.New(cluster, nodes[0], p), p)
	f.Mistakes = result.Errors
	if c.diffDir != "" && broken(result) == nil {
		old, err := c.loadOld(ctx)
		if err != nil {
			return err
		}
		base, risk, err := c.before(saved, old)
		if err != nil {
			return err
		}
		comesTo := func(part plan.Plan) forecast.Fleet { return forecast.New(cluster, nodes[0], part) }
		f.Split(report.NewDifference(old.Config, result.Config), base, risk, comesTo)
	}
	return errors.Join(f.Write(c.out, c.format, hasColour(c.out), len(nodes) > 1), c.exit(p, result))
}

// savedNodes are the nodes to plan for: all that are declared, or the one of --node,
// or, where none are declared, the one that the state is of.
func (c *convergence) savedNodes(saved *status.SavedCluster, result schema.Result) ([]plan.Desired, error) {
	names := slices.Sorted(maps.Keys(result.Config.Nodes))
	var paths []string
	if len(names) == 0 {
		names = saved.Nodes()
		if len(names) > 1 {
			return nil, fmt.Errorf("the configuration declares no nodes, so every node is alone: give one --state, not %d", len(names))
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
		nodes[i] = d // they share how disks are ranked
		nodes[i].Node = name
	}
	return nodes, nil
}

// readStates reads saved statuses, each of another node.
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

// checkFiles refuses what makes no sense with --out and --plan.
func (c *convergence) checkFiles() error {
	switch {
	case c.outFile != "" && c.planFile != "":
		return errors.New("--out and --plan exclude each other: the one saves a plan, the other does what one says")
	case c.outFile != "" && (!c.dryRun || c.diffDir != "" && len(c.states) == 0):
		return errors.New("--out is for --dry-run, with or without --state: it saves the plan that is printed")
	case c.planFile != "" && len(c.states) > 0:
		return errors.New("--plan and --state exclude each other: a saved plan is held against what is there now")
	case c.planFile != "" && c.diffDir != "":
		return errors.New("--plan and --diff exclude each other")
	}
	return nil
}

// save writes the plan to the file of --out, if there is one: the whole of it or nothing.
func (c *convergence) save(result schema.Result, plan plan.SavedPlan) error {
	if c.outFile == "" {
		return nil
	}
	if result.Digest == "" {
		return errors.New("the plan is not saved: the configuration has mistakes")
	}
	var text bytes.Buffer
	if err := report.WriteJSON(&text, plan); err != nil {
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

func (c *convergence) readPlan() (plan plan.SavedPlan, err error) {
	err = status.ReadSavedFile(c.planFile, &plan)
	if _, unread := errors.AsType[*fs.PathError](err); unread {
		return plan, fmt.Errorf("read --plan: %w", err)
	}
	if err == nil {
		err = plan.Check()
	}
	if err != nil {
		return plan, fmt.Errorf("--plan %s is not a plan as --out saves it: %w", c.planFile, err)
	}
	return plan, nil
}

// checkPlan says whether the plan of --plan still holds.
func (c *convergence) checkPlan(d plan.Desired, o plan.Observed, now plan.Plan) error {
	if d.Only == nil {
		return nil
	}
	if err := d.Only.CheckAgainst(d, o, now); err != nil {
		return errors.Join(fmt.Errorf("the plan %s does not hold any more, and nothing is done: make another one with --dry-run --out", c.planFile), err)
	}
	return nil
}

// unfinishedOf says what of a plan was not done.
func unfinishedOf(plan plan.SavedPlan, d plan.Desired, o plan.Observed, now plan.Plan) error {
	failed := 0
	for _, key := range ownFailures(d, o) {
		if plan.Contains(key) {
			failed++
		}
	}
	left := len(plan.Remaining(now).Actions)
	switch {
	case failed > 0:
		return fmt.Errorf("the saved plan was not done: %d failed", failed)
	case left > 0:
		return fmt.Errorf("the saved plan was not done: %s left", report.Count(left, "action"))
	}
	return nil
}

func (c *convergence) addPlanFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&c.diffDir, "diff", "", "do nothing, and tell what is declared otherwise than in `OLD_DIR`")
	flags.StringVar(&c.outFile, "out", "", "with --dry-run, save the plan in `FILE`")
	flags.StringVar(&c.planFile, "plan", "", "do what the plan says that --out saved in `FILE`, if it still holds")
	mark := errors.Join(cmd.MarkFlagDirname("diff"), cmd.MarkFlagFilename("out", "json"), cmd.MarkFlagFilename("plan", "json"))
	if mark != nil {
		panic("mark flags: " + mark.Error())
	}
}

// checkDiff refuses what makes no sense with --diff.
func (c *convergence) checkDiff() error {
	if c.diffDir != "" && (len(c.disks) > 0 || c.offline) {
		return errors.New("--diff compares configurations and looks at no disks: leave out --disk and --offline")
	}
	return nil
}

func (c *convergence) loadOld(ctx context.Context) (schema.Result, error) {
	old, err := load(ctx, c.err, c.diffDir)
	if err != nil {
		return old, fmt.Errorf("read --diff: %w", err)
	}
	if n := len(old.Errors); n > 0 {
		fmt.Fprintf(c.err, "warning: %s has %s: what is broken there counts as added\n", c.diffDir, report.Count(n, "mistake"))
	}
	return old, nil
}

// compare prints what two configurations differ in.
func (c *convergence) compare(ctx context.Context, result schema.Result) error {
	if err := broken(result); err != nil {
		return err // what is broken would look as if it were removed
	}
	old, err := c.loadOld(ctx)
	if err != nil {
		return err
	}
	d := report.NewDifference(old.Config, result.Config)
	f := report.ClusterPlan{Diff: &d}
	if err := f.WriteDifference(c.out, c.format); err != nil {
		return err
	}
	if c.detailedExit && !d.Empty() {
		return &exitError{code: 2}
	}
	return nil
}

// before is what the old configuration would have done, and what of that somebody should
// know.
func (c *convergence) before(saved *status.SavedCluster, old schema.Result) (plan.Plan, forecast.Risk, error) {
	nodes, err := c.savedNodes(saved, old)
	if err != nil {
		return plan.Plan{}, forecast.Risk{}, fmt.Errorf("plan for --diff %s: %w", c.diffDir, err)
	}
	was := saved.Cluster(nodes[0])
	base := was.Plan(nodes)
	return base, forecast.New(was, nodes[0], base).Risk, nil
}

// writeErrors writes the errors of a configuration that no plan can be made for.
func (c *convergence) writeErrors(result schema.Result) error {
	if c.format != "markdown" {
		return nil
	}
	return report.WriteErrors(c.out, result.Errors)
}
