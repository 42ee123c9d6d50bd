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
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/spf13/cobra"
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

	config *configdir.Snapshot // of --config-dir; nil: there is none
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
	sum := suiteReport{Scenarios: []played{}}
	for _, file := range files {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p := s.play(ctx, file)
		sum.add(p)
		if s.format == "text" {
			if err := p.write(s.out, s.verbose); err != nil {
				return err
			}
		}
	}
	if s.format == "json" {
		err = report.WriteJSON(s.out, sum)
	} else {
		_, err = fmt.Fprintln(s.out, sum.summary())
	}
	if err == nil && sum.Failed > 0 {
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
		return nil, fmt.Errorf("none of %s matches --run %s", report.Count(all, "scenario"), s.only)
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
		report.WriteProblems(s.err, s.configDir, r)
		return fmt.Errorf("the configuration has %s: no scenario was played", report.Count(len(r.Errors), "mistake"))
	}
	s.config = &snapshot
	return ctx.Err()
}

// load loads a configuration as a manager that starts with it does.
func (s *suite) load(ctx context.Context, snapshot configdir.Snapshot) schema.Result {
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

// play plays one scenario.
func (s *suite) play(ctx context.Context, file string) played {
	began := time.Now()
	t := &player{verbose: s.verbose}
	data, err := os.ReadFile(file)
	if err != nil {
		t.refuse(file, err.Error())
	} else if mistakes := checkScenario(file, txtar.Parse(data)); len(mistakes) > 0 {
		t.refuse(mistakes...)
	} else {
		t.Run(file, func(testscript.T) { testscript.RunT(t, s.params(ctx, file)) })
	}
	return t.played(file, time.Since(began))
}

func (s *suite) params(ctx context.Context, file string) testscript.Params {
	return testscript.Params{
		Files:              []string{file},
		Cmds:               stageCommands(),
		UpdateScripts:      s.update,
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			if err := s.unpackConfig(env.WorkDir); err != nil {
				return err
			}
			st := &stage{suite: s, ctx: ctx, dir: env.WorkDir, drained: map[string]bool{}}
			env.Values[stageKey{}] = st
			if _, err := os.Stat(filepath.Join(env.WorkDir, configFolder)); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return st.begin()
		},
	}
}

// configFolder is the configuration that a scenario begins with.
const configFolder = "config"

// unpackConfig copies the files of --config-dir to those of the scenario, which come
// first.
func (s *suite) unpackConfig(dir string) error {
	if s.config == nil {
		return nil
	}
	for _, f := range s.config.Files {
		to := filepath.Join(dir, configFolder, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
			return err
		}
		out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		_, err = out.Write(f.Data)
		if err := errors.Join(err, out.Close()); err != nil {
			return fmt.Errorf("unpack %s: %w", f.Path, err)
		}
	}
	return nil
}

// player is what testscript plays on: a scenario's outcome and its log.
type player struct {
	verbose bool
	failed  bool
	skipped bool
	why     string // it was skipped
	log     strings.Builder
}

// errEnded is what ends a scenario early.
var errEnded = errors.New("the scenario has ended")

// Run plays f to its end.
func (t *player) Run(_ string, f func(testscript.T)) {
	defer func() {
		if e := recover(); e != nil && e != error(errEnded) {
			panic(e)
		}
	}()
	f(t)
}

// Skip ends the scenario as one that was not to be played.
func (t *player) Skip(why ...any) {
	t.skipped, t.why = true, fmt.Sprint(why...)
	panic(errEnded)
}

// Fatal ends the scenario as one that failed.
func (t *player) Fatal(why ...any) {
	t.Log(why...)
	t.FailNow()
}

// FailNow ends the scenario as one that failed.
func (t *player) FailNow() {
	t.failed = true
	panic(errEnded)
}

// Log takes down what happened.
func (t *player) Log(what ...any) {
	fmt.Fprintln(&t.log, strings.TrimSuffix(fmt.Sprint(what...), "\n"))
}

// Parallel does nothing: scenarios are played one after the other.
func (t *player) Parallel() {}

// Verbose reports whether all that happened is taken down.
func (t *player) Verbose() bool { return t.verbose }

// refuse says what keeps a scenario from being played.
func (t *player) refuse(mistakes ...string) {
	t.failed = true
	t.log.WriteString("FAIL: " + strings.Join(mistakes, "\n") + "\n")
}

var (
	phaseTime = regexp.MustCompile(`(?m)^(#.*) \(\d+\.\d{3}s\)$`)
	failLine  = regexp.MustCompile(`(?ms)^FAIL: (.*)\z`)
)

// played is what is to be told of the scenario. Of the log only what the scenario did is
// left: testscript tells the environment first, and how long everything took.
func (t *player) played(file string, took time.Duration) played {
	log := phaseTime.ReplaceAllString(t.log.String(), "$1")
	if strings.HasPrefix(log, "WORK=") {
		_, log, _ = strings.Cut(log, "\n\n")
	}
	log = strings.TrimSuffix(strings.TrimSuffix(log, "\n"), "PASS")
	p := played{File: file, Outcome: hasPassed, Seconds: took.Seconds()}
	if m := failLine.FindStringSubmatchIndex(log); m != nil {
		p.Message = strings.TrimSpace(log[m[2]:m[3]])
		p.Message = strings.TrimPrefix(p.Message, file+":0: ") // of what came before the first line
		log = log[:m[0]]
	}
	p.Log = strings.Trim(log, "\n")
	switch {
	case t.failed:
		p.Outcome = hasFailed
	case t.skipped:
		p.Outcome, p.Message = wasSkipped, t.why
	}
	return p
}

// outcome is how a scenario ended.
type outcome string

const (
	hasPassed  outcome = "ok"
	hasFailed  outcome = "FAIL"
	wasSkipped outcome = "skip"
)

// played is a scenario that was played.
type played struct {
	File    string  `json:"file"`
	Outcome outcome `json:"outcome"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"` // why it failed, with FILE:LINE, or was skipped
	Log     string  `json:"log,omitempty"`     // of the last part, or of all of it
}

// suiteReport is what all scenarios came to.
type suiteReport struct {
	Scenarios []played `json:"scenarios"`
	Passed    int      `json:"passed"`
	Failed    int      `json:"failed"`
	Skipped   int      `json:"skipped"`
}

func (r *suiteReport) add(p played) {
	r.Scenarios = append(r.Scenarios, p)
	switch p.Outcome {
	case hasPassed:
		r.Passed++
	case hasFailed:
		r.Failed++
	case wasSkipped:
		r.Skipped++
	}
}

func (r *suiteReport) summary() string {
	all := report.Count(len(r.Scenarios), "scenario")
	text := all + " passed."
	if r.Failed > 0 {
		text = fmt.Sprintf("%d of %s failed.", r.Failed, all)
	} else if r.Skipped > 0 {
		text = fmt.Sprintf("%d of %s passed.", r.Passed, all)
	}
	if r.Skipped > 0 {
		text = fmt.Sprintf("%s, %d skipped.", strings.TrimSuffix(text, "."), r.Skipped)
	}
	return text
}

// write tells people of a scenario: in a line, and where it failed, or is to be told
// whole, with what it did.
func (p played) write(w io.Writer, whole bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %s (%.3fs)", p.Outcome, p.File, p.Seconds)
	if p.Outcome == wasSkipped && p.Message != "" {
		fmt.Fprintf(&b, ": %s", p.Message)
	}
	b.WriteByte('\n')
	if p.Log != "" && (whole || p.Outcome == hasFailed) {
		indent(&b, p.Log)
	}
	if p.Outcome == hasFailed {
		indent(&b, p.Message)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func indent(b *strings.Builder, text string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			fmt.Fprintf(b, "      %s", line)
		}
		b.WriteByte('\n')
	}
}
