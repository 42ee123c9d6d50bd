package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// fleetPlan is the plan of all nodes and what it comes to. In JSON it is the plan with
// more fields; it is a stable interface.
type fleetPlan struct {
	reconcile.Plan
	Fleet *reconcile.Fleet `json:"fleet,omitempty"`
	Diff  *difference      `json:"diff,omitempty"`
	// Mistakes are those of the configuration. While it has any there is no Diff.
	Mistakes []schema.Problem `json:"mistakes,omitempty"`

	due reconcile.Plan // what is not done anyway: all of it, if there is nothing to compare with
	// anyway is how many actions the configuration that was compared with has too.
	anyway int
}

// difference is what two configurations differ in, and by which fields.
type difference struct {
	reconcile.Difference
	Fields []fieldDifference `json:"fields"` // of what both declare, sorted
	// Anyway is how many of the actions are planned under the old configuration too, where a
	// state is given.
	Anyway int `json:"anyway"`
}

func newFleetPlan(fleet reconcile.Fleet, p reconcile.Plan) fleetPlan {
	return fleetPlan{Plan: p, Fleet: &fleet, due: p}
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
		fmt.Fprintf(c.err, "warning: %s has %s: what is broken there counts as added\n", c.diffDir, count(n, "mistake"))
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
	d := newDifference(old.Config, result.Config)
	f := fleetPlan{Diff: &d}
	if err := f.writeDifference(c.out, c.format); err != nil {
		return err
	}
	if c.detailedExit && !d.Empty() {
		return &exitError{code: 2}
	}
	return nil
}

// before is what the old configuration would have done, and what of that somebody should
// know.
func (c *convergence) before(saved *reconcile.Snapshot, old schema.Result) (reconcile.Plan, reconcile.Risk, error) {
	nodes, err := c.savedNodes(saved, old)
	if err != nil {
		return reconcile.Plan{}, reconcile.Risk{}, fmt.Errorf("plan for --diff %s: %w", c.diffDir, err)
	}
	was := saved.Cluster(nodes[0])
	base := was.Plan(nodes)
	return base, was.Fleet(nodes[0], base).Risk, nil
}

// tellApart tells apart what is done because of a difference and what was planned before,
// with its risk, too. comesTo says what a part of the plan comes to.
func (f *fleetPlan) tellApart(d difference, before reconcile.Plan, had reconcile.Risk, comesTo func(reconcile.Plan) reconcile.Fleet) {
	f.due = f.Plan.Without(before)
	f.due.Suspended = f.Plan.Suspended
	f.anyway = len(f.Plan.Actions) - len(f.due.Actions)
	d.Anyway = f.anyway
	f.Diff = &d
	// Of each list what is new, and of the numbers those of what is new.
	risk := comesTo(f.due).Risk
	risk.LosesAll, risk.BelowReserve, risk.BelowCopies = f.Fleet.Risk.LosesAll, f.Fleet.Risk.BelowReserve, f.Fleet.Risk.BelowCopies
	f.Fleet.Risk = risk.Without(had)
}

// writeMistakes makes a comment of a configuration that no plan can be made of.
func (c *convergence) writeMistakes(result schema.Result) error {
	if c.format != "markdown" {
		return nil
	}
	b := &markdownPage{}
	b.mistakes(result.Errors)
	_, err := io.WriteString(c.out, b.String())
	return err
}

// write prints the plan in one of the formats text, json, yaml and markdown.
func (f fleetPlan) write(w io.Writer, format string, colour, cluster bool) error {
	switch format {
	case "json":
		return writeJSON(w, f)
	case "yaml":
		return writeYAML(w, f)
	case "markdown":
		_, err := io.WriteString(w, f.markdown(cluster))
		return err
	}
	_, err := io.WriteString(w, f.text(colour, cluster))
	return err
}

func writeYAML(w io.Writer, v any) error {
	b, err := yaml.Marshal(v)
	if err == nil {
		_, err = w.Write(b)
	}
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// writeDifference prints the difference alone.
func (f fleetPlan) writeDifference(w io.Writer, format string) error {
	alone := struct {
		Diff *difference `json:"diff"`
	}{f.Diff}
	switch format {
	case "json":
		return writeJSON(w, alone)
	case "yaml":
		return writeYAML(w, alone)
	case "markdown":
		_, err := io.WriteString(w, f.Diff.markdown())
		return err
	}
	_, err := io.WriteString(w, f.Diff.text())
	return err
}
