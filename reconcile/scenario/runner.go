package scenario

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
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Runner runs scenarios against one configuration.
type Runner struct {
	update  bool // write the output that cmp compares into the scenarios
	verbose bool // log all parts of a scenario, not only the last one

	config *configdir.Snapshot           // added to the files of each scenario; nil: nothing
	saved  *status.SavedCluster          // the state at the start; nil: empty disks
	loaded map[disk.Digest]schema.Result // valid configurations by their files
}

func NewRunner(update, verbose bool) *Runner {
	return &Runner{update: update, verbose: verbose, loaded: map[disk.Digest]schema.Result{}}
}

// UseConfig adds the files of a configuration to each scenario, unless it has errors.
func (s *Runner) UseConfig(ctx context.Context, snapshot configdir.Snapshot) schema.Result {
	r := s.load(ctx, snapshot)
	if len(r.Errors) == 0 {
		s.config = &snapshot
	}
	return r
}

// UseStates starts each scenario from saved states.
func (s *Runner) UseStates(saved *status.SavedCluster) { s.saved = saved }

// Find returns the scenario files in paths whose names match the regular
// expression only, each once, sorted.
func Find(paths []string, only string) ([]string, error) {
	pattern, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	var files []string
	for _, path := range paths {
		below, err := findBelow(path)
		if err != nil {
			return nil, err
		}
		files = append(files, below...)
	}
	all := len(files)
	files = slices.DeleteFunc(files, func(file string) bool { return !pattern.MatchString(file) })
	slices.Sort(files)
	files = slices.Compact(files)
	switch {
	case all == 0:
		return nil, fmt.Errorf("no scenarios (*.txtar) in %s", strings.Join(paths, ", "))
	case len(files) == 0:
		return nil, fmt.Errorf("none of %s matches --run %s", report.Count(all, "scenario"), only)
	}
	return files, nil
}

func findBelow(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if filepath.Ext(path) != ".txtar" {
			return nil, fmt.Errorf("%s is not a scenario: its name must be *.txtar", path)
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

// load loads a configuration as a manager that starts with it does.
func (s *Runner) load(ctx context.Context, snapshot configdir.Snapshot) schema.Result {
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

// Run runs one scenario.
func (s *Runner) Run(ctx context.Context, file string) Result {
	began := time.Now()
	t := &scriptT{verbose: s.verbose}
	data, err := os.ReadFile(file)
	if err != nil {
		t.failBefore(file, err.Error())
	} else if mistakes := checkScenario(file, txtar.Parse(data)); len(mistakes) > 0 {
		t.failBefore(mistakes...)
	} else {
		t.Run(file, func(testscript.T) { testscript.RunT(t, s.params(ctx, file)) })
	}
	return t.result(file, time.Since(began))
}

func (s *Runner) params(ctx context.Context, file string) testscript.Params {
	return testscript.Params{
		Files:              []string{file},
		Cmds:               scriptCommands(),
		UpdateScripts:      s.update,
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			if err := s.unpackConfig(env.WorkDir); err != nil {
				return err
			}
			st := &session{runner: s, ctx: ctx, dir: env.WorkDir, drained: map[string]bool{}}
			env.Values[sessionKey{}] = st
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
func (s *Runner) unpackConfig(dir string) error {
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
type scriptT struct {
	verbose bool
	failed  bool
	skipped bool
	why     string // it was skipped
	log     strings.Builder
}

// errScenarioEnded is what ends a scenario early.
var errScenarioEnded = errors.New("the scenario has ended")

// Run plays f to its end.
func (t *scriptT) Run(_ string, f func(testscript.T)) {
	defer func() {
		if e := recover(); e != nil && e != error(errScenarioEnded) {
			panic(e)
		}
	}()
	f(t)
}

// Skip ends the scenario as one that was not to be played.
func (t *scriptT) Skip(why ...any) {
	t.skipped, t.why = true, fmt.Sprint(why...)
	panic(errScenarioEnded)
}

// Fatal ends the scenario as one that failed.
func (t *scriptT) Fatal(why ...any) {
	t.Log(why...)
	t.FailNow()
}

// FailNow ends the scenario as one that failed.
func (t *scriptT) FailNow() {
	t.failed = true
	panic(errScenarioEnded)
}

// Log takes down what happened.
func (t *scriptT) Log(what ...any) {
	fmt.Fprintln(&t.log, strings.TrimSuffix(fmt.Sprint(what...), "\n"))
}

// Parallel does nothing: scenarios are played one after the other.
func (t *scriptT) Parallel() {}

// Verbose reports whether all that happened is taken down.
func (t *scriptT) Verbose() bool { return t.verbose }

// failBefore says what keeps a scenario from being played.
func (t *scriptT) failBefore(mistakes ...string) {
	t.failed = true
	t.log.WriteString("FAIL: " + strings.Join(mistakes, "\n") + "\n")
}

var (
	phaseTime = regexp.MustCompile(`(?m)^(#.*) \(\d+\.\d{3}s\)$`)
	failLine  = regexp.MustCompile(`(?ms)^FAIL: (.*)\z`)
)

// played is what is to be told of the scenario. Of the log only what the scenario did is
// left: testscript tells the environment first, and how long everything took.
func (t *scriptT) result(file string, took time.Duration) Result {
	log := phaseTime.ReplaceAllString(t.log.String(), "$1")
	if strings.HasPrefix(log, "WORK=") {
		_, log, _ = strings.Cut(log, "\n\n")
	}
	log = strings.TrimSuffix(strings.TrimSuffix(log, "\n"), "PASS")
	p := Result{File: file, Outcome: passed, Seconds: took.Seconds()}
	if m := failLine.FindStringSubmatchIndex(log); m != nil {
		p.Message = strings.TrimSpace(log[m[2]:m[3]])
		p.Message = strings.TrimPrefix(p.Message, file+":0: ") // of what came before the first line
		log = log[:m[0]]
	}
	p.Log = strings.Trim(log, "\n")
	switch {
	case t.failed:
		p.Outcome = failed
	case t.skipped:
		p.Outcome, p.Message = skipped, t.why
	}
	return p
}

// outcome is how a scenario ended.
type outcome string

const (
	passed  outcome = "ok"
	failed  outcome = "FAIL"
	skipped outcome = "skip"
)

// played is a scenario that was played.
type Result struct {
	File    string  `json:"file"`
	Outcome outcome `json:"outcome"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"` // why it failed, with FILE:LINE, or was skipped
	Log     string  `json:"log,omitempty"`     // of the last part, or of all of it
}

// Results are the results of all scenarios.
type Results struct {
	Scenarios []Result `json:"scenarios"`
	Passed    int      `json:"passed"`
	Failed    int      `json:"failed"`
	Skipped   int      `json:"skipped"`
}

func NewResults() *Results { return &Results{Scenarios: []Result{}} }

func (r *Results) Add(p Result) {
	r.Scenarios = append(r.Scenarios, p)
	switch p.Outcome {
	case passed:
		r.Passed++
	case failed:
		r.Failed++
	case skipped:
		r.Skipped++
	}
}

func (r *Results) Summary() string {
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

// Write tells people of a scenario: in a line, and where it failed, or is to be told
// whole, with what it did.
func (p Result) Write(w io.Writer, whole bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %s (%.3fs)", p.Outcome, p.File, p.Seconds)
	if p.Outcome == skipped && p.Message != "" {
		fmt.Fprintf(&b, ": %s", p.Message)
	}
	b.WriteByte('\n')
	if p.Log != "" && (whole || p.Outcome == failed) {
		indent(&b, p.Log)
	}
	if p.Outcome == failed {
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
