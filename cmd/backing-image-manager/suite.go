package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// suite is one run of the command test.
type suite struct {
	configDir string
	states    []string
	only      string
	update    bool
	verbose   bool
	format    string
	out, err  io.Writer

	config *schema.Snapshot // of --config-dir; nil: there is none
	saved  *reconcile.Snapshot
	loaded map[disk.Digest]schema.Result // what is valid, by what it was loaded from
}

func newTest() *cobra.Command {
	s := &suite{loaded: map[disk.Digest]schema.Result{}}
	cmd := &cobra.Command{
		Use:   "test DIR|FILE... [flags]",
		Short: "Play scenarios of your own against a configuration",
		Long: `Plays scenarios against a configuration, to test what it comes to: "when node3 is
drained, parrot keeps two copies on ssd". Everything is in memory and at once, with the
real planning and a clock that the scenario sets: no daemon, no disk, no network.

A scenario is a file NAME.txtar: commands, a line each, then files, each below a line
"-- NAME --". The folder config among these is the configuration; with --config-dir that
one is, with these files laid over it. A line that begins with # says what comes.

    # When node3 is drained, parrot keeps two copies on ssd.
    converge
    placed parrot node2/ssd node3/ssd
    drain node3
    converge
    copies parrot 2 on=ssd
    placed parrot node1/ssd node2/ssd

It begins with every declared disk there, empty, and 1 TiB free, every node up, every
source delivering 1 GiB, and nothing in use. Left out are the bytes of images, the time
that transfers take, and whatever needs two things at one moment.

Commands that change something:
` + synopses(changing) + `
Commands that look, or fail when it is not so (with ! before them, when it is):
` + synopses(looking) + `
Also there, as in testscript: ` + strings.Join(borrowedNames(), " ") + `.
Nothing is run, and no file is touched but in the scenario's own folder, so that
anybody's scenarios may be played.

Exit status: 1 when a scenario failed, or there is none.`,
		Example: `  backing-image-manager test scenarios --config-dir config
  backing-image-manager test scenarios/drain.txtar -v
  backing-image-manager test scenarios --config-dir config --state node1.json --run 'drain|upgrade'`,
	}
	flags := cmd.Flags()
	flags.StringVar(&s.configDir, "config-dir", "", "the `DIR` that the scenarios are about, as their folder config")
	flags.StringArrayVar(&s.states, "state", nil, "begin with the saved status -o json in `FILE`; may be repeated, one for each node")
	flags.StringVar(&s.only, "run", "", "only the scenarios whose paths match `REGEXP`")
	flags.BoolVar(&s.update, "update", false, "write what \"cmp stdout FILE\" found into the scenarios")
	flags.BoolVarP(&s.verbose, "verbose", "v", false, "show what every scenario did")
	if err := errors.Join(cmd.MarkFlagDirname("config-dir"), cmd.MarkFlagFilename("state", "json")); err != nil {
		panic("mark flags of test: " + err.Error())
	}
	format := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s.format, s.out, s.err = format.word, cmd.OutOrStdout(), cmd.ErrOrStderr()
		if len(args) == 0 {
			return errors.New("name a directory or a file with scenarios (*.txtar)")
		}
		return s.run(cmd.Context(), args)
	}
	return cmd
}

func (s *suite) run(ctx context.Context, paths []string) error {
	files, err := s.find(paths)
	if err != nil {
		return err
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	report := suiteReport{Scenarios: []played{}}
	for _, file := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := s.play(ctx, file)
		report.add(p)
		if s.format == "text" {
			if err := p.write(s.out, s.verbose); err != nil {
				return err
			}
		}
	}
	if s.format == "json" {
		err = writeJSON(s.out, report)
	} else {
		_, err = fmt.Fprintln(s.out, report.summary())
	}
	if err == nil && report.Failed > 0 {
		return &exitError{code: 1} // everything was said
	}
	return err
}

// find lists the scenarios that are meant, each once.
func (s *suite) find(paths []string) ([]string, error) {
	only, err := regexp.Compile(s.only)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	var files []string
	for _, path := range paths {
		below, err := scenariosBelow(path)
		if err != nil {
			return nil, err
		}
		files = append(files, below...)
	}
	all := len(files)
	files = slices.DeleteFunc(files, func(file string) bool { return !only.MatchString(file) })
	slices.Sort(files)
	files = slices.Compact(files)
	switch {
	case all == 0:
		return nil, fmt.Errorf("no scenarios (*.txtar) in %s", strings.Join(paths, ", "))
	case len(files) == 0:
		return nil, fmt.Errorf("none of %s matches --run %s", count(all, "scenario"), s.only)
	}
	return files, nil
}

func scenariosBelow(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if filepath.Ext(path) != ".txtar" {
			return nil, fmt.Errorf("%s is no scenario: it has to be *.txtar", path)
		}
		return []string{path}, nil
	}
	var files []string
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && file != path && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case entry.Type().IsRegular() && filepath.Ext(file) == ".txtar":
			files = append(files, file)
		}
		return nil
	})
	return files, err
}

// prepare reads what all scenarios begin with.
func (s *suite) prepare(ctx context.Context) error {
	var err error
	if len(s.states) > 0 {
		if s.saved, err = readStates(s.states); err != nil {
			return err
		}
	}
	if s.configDir == "" {
		return nil
	}
	snapshot, err := readConfig(ctx, s.err, s.configDir)
	if err != nil {
		return err
	}
	if r := s.load(ctx, snapshot); len(r.Errors) > 0 {
		printProblems(s.err, s.configDir, r)
		return fmt.Errorf("the configuration has %s: no scenario was played", count(len(r.Errors), "mistake"))
	}
	s.config = &snapshot
	return ctx.Err()
}

// load loads a configuration as a manager that starts with it does.
func (s *suite) load(ctx context.Context, snapshot schema.Snapshot) schema.Result {
	digest := snapshot.Digest()
	r, ok := s.loaded[digest]
	if !ok {
		r = schema.NewLoader().Load(ctx, snapshot)
		if len(r.Errors) == 0 {
			s.loaded[digest] = r
		}
	}
	return r
}
