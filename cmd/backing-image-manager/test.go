package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/scenario"
)

// testCmd is one run of the command test.
type testCmd struct {
	configDir string
	states    []string
	only      string
	update    bool
	verbose   bool
	format    report.Format
	out, err  io.Writer
}

func newTest() *cobra.Command {
	t := &testCmd{}
	cmd := &cobra.Command{
		Use:   "test DIR|FILE... [flags]",
		Short: "Run scenarios against a configuration",
		Long: `Runs scenarios against a configuration, to test its effect: "when node3 is drained,
parrot keeps two copies on ssd". The planner is the real one. Disks, network and clock
are simulated in memory, so that no daemon is needed and no time passes.

A scenario is a file NAME.txtar: commands, one on each line, followed by files. A line
"-- NAME --" begins a file. The folder config of a scenario has the configuration.
With --config-dir the files of that directory are added, and the scenario's own files
replace files of the same name. A line that begins with # is a comment.

    # When node3 is drained, parrot keeps two copies on ssd.
    converge
    placed parrot node2/ssd node3/ssd
    drain node3
    converge
    copies parrot 2 on=ssd
    placed parrot node1/ssd node2/ssd

At the start every declared disk is mounted and empty and has 1 TiB free, every node
is up, every source delivers 1 GiB, and no copy is in use. The simulation leaves out
the bytes of images, the duration of transfers, and concurrent events.

Commands that change the cluster:
` + scenario.MutatingSynopses() + `
Commands that print, or that fail if a condition is false (with ! before the command:
if it is true):
` + scenario.AssertSynopses() + `
These commands of testscript are available, too: ` + scenario.BuiltinNames() + `.
A scenario cannot run programs or use files outside its own folder. Scenarios of other
people are therefore safe to run.

Exit status: 1 if a scenario failed, or if there is none.`,
		Example: `  backing-image-manager test scenarios --config-dir config
  backing-image-manager test scenarios/drain.txtar -v
  backing-image-manager test scenarios --config-dir config --state node1.json --run 'drain|upgrade'`,
		Args: needArgs("name a directory or a file with scenarios (*.txtar)"),
	}
	flags := cmd.Flags()
	flags.StringVar(&t.configDir, "config-dir", "", "use the config directory `DIR` as the folder config of each scenario")
	flags.StringArrayVar(&t.states, "state", nil, "start from the saved output of status -o json in `FILE`; repeat it for each node")
	flags.StringVar(&t.only, "run", "", "only run the scenarios whose paths match `REGEXP`")
	flags.BoolVar(&t.update, "update", false, "write the actual output into the files that \"cmp stdout FILE\" compares")
	flags.BoolVarP(&t.verbose, "verbose", "v", false, "print the log of every scenario")
	complete(cmd, (*cobra.Command).MarkFlagDirname, "config-dir")
	complete(cmd, completeJSON, "state")
	format := outputFlag(cmd, report.Text, report.JSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		t.format, t.out, t.err = format.value, cmd.OutOrStdout(), cmd.ErrOrStderr()
		return t.run(cmd.Context(), args)
	}
	return cmd
}

func (t *testCmd) run(ctx context.Context, paths []string) error {
	files, err := scenario.Find(paths, t.only)
	if err != nil {
		return err
	}
	r, err := t.runner(ctx)
	if err != nil {
		return err
	}
	results := scenario.Results{Scenarios: []scenario.Result{}}
	for _, file := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		result := r.Run(ctx, file)
		results.Add(result)
		if t.format == report.Text {
			if err := result.Write(t.out, t.verbose); err != nil {
				return err
			}
		}
	}
	if err := report.Print(t.out, t.format, results, results.Summary()); err != nil || results.Failed == 0 {
		return err
	}
	return &exitError{code: 1} // the results have the reasons
}

// runner returns the runner with the configuration and the states of the flags.
func (t *testCmd) runner(ctx context.Context) (*scenario.Runner, error) {
	r := &scenario.Runner{Update: t.update, Verbose: t.verbose}
	if len(t.states) > 0 {
		var err error
		if r.States, err = readStates(t.states); err != nil {
			return nil, err
		}
	}
	if t.configDir == "" {
		return r, nil
	}
	snapshot, err := readConfig(ctx, t.err, t.configDir)
	if err != nil {
		return nil, err
	}
	if result := r.UseConfig(ctx, snapshot); len(result.Errors) > 0 {
		report.WriteProblems(t.err, t.configDir, result)
		return nil, fmt.Errorf("the configuration has %s: no scenario was run", report.Count(len(result.Errors), "error"))
	}
	return r, ctx.Err()
}
