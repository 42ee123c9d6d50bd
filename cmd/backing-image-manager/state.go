package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
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
	if !c.everyNode || nodes[0].May == schema.ObserveOnly {
		return errors.Join(c.write(nodes[0], p, false), c.writeMistakes(result), c.exit(p, result))
	}
	f := newFleetPlan(cluster.Fleet(nodes[0], p), p)
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
		comesTo := func(part reconcile.Plan) reconcile.Fleet { return cluster.Fleet(nodes[0], part) }
		f.tellApart(newDifference(old.Config, result.Config), base, risk, comesTo)
	}
	return errors.Join(f.write(c.out, c.format, colourful(c.out), len(nodes) > 1), c.exit(p, result))
}

// savedNodes are the nodes to plan for: all that are declared, or the one of --node,
// or, where none are declared, the one that the state is of.
func (c *convergence) savedNodes(saved *reconcile.Snapshot, result schema.Result) ([]reconcile.Desired, error) {
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
	d, err := reconcile.Desire(result, names[0], paths)
	if err != nil {
		return nil, err
	}
	nodes := make([]reconcile.Desired, len(names))
	for i, name := range names {
		nodes[i] = d // they share how disks are ranked
		nodes[i].Node = name
	}
	return nodes, nil
}

// readStates reads saved statuses, each of another node.
func readStates(files []string) (*reconcile.Snapshot, error) {
	saved := &reconcile.Snapshot{}
	for _, file := range files {
		err := readState(saved, file)
		if _, unread := errors.AsType[*fs.PathError](err); unread {
			return nil, fmt.Errorf("read --state: %w", err)
		}
		if err != nil {
			return nil, fmt.Errorf("--state %s is %w", file, err)
		}
	}
	return saved, nil
}

// maxSaved is the most that a saved status or plan may have, which is read as a whole.
const maxSaved = 256 << 20

// readFile reads a file that this program saved, if it can be one.
func readFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tooLarge := &fs.PathError{Op: "read", Path: file, Err: fmt.Errorf("it has more than %s", humanize.IBytes(maxSaved))}
	if fi, err := f.Stat(); err != nil || fi.Size() > maxSaved {
		return nil, cmp.Or[error](err, tooLarge)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSaved+1)) // a device tells no size
	if err == nil && len(text) > maxSaved {
		err = tooLarge
	}
	return text, err
}

// readState adds the status in a file.
func readState(saved *reconcile.Snapshot, file string) error {
	text, err := readFile(file)
	if err != nil {
		return err
	}
	var s reconcile.Status
	if err = unmarshal(text, &s); err == nil {
		err = saved.Add(s)
	}
	if err != nil {
		return fmt.Errorf("not a status as status -o json prints it: %w", err)
	}
	return nil
}

// unmarshal reads what is JSON, if somebody did not take another file for it.
func unmarshal(text []byte, v any) error {
	err := json.Unmarshal(text, v)
	if _, is := errors.AsType[*json.SyntaxError](err); is {
		return fmt.Errorf("it is not JSON: %w", err)
	}
	return err
}
