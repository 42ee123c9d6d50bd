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

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// Runner runs scenarios against one configuration.
type Runner struct {
	Update  bool                 // write the output that cmp compares into the scenarios
	Verbose bool                 // log all parts of a scenario, and not only the last part
	States  *status.SavedCluster // the state at the start; nil means empty disks

	config *configdir.Snapshot          // added to the files of each scenario; nil means no files
	loaded map[ident.Digest]load.Result // valid configurations, by the digest of their files
}

// UseConfig adds the files of a configuration to each scenario, unless the configuration has
// errors. The result has the errors.
func (r *Runner) UseConfig(ctx context.Context, snapshot configdir.Snapshot) load.Result {
	result := r.load(ctx, snapshot)
	if len(result.Errors) == 0 {
		r.config = &snapshot
	}
	return result
}

// Find returns the scenario files in paths, and below the folders in paths. It keeps only files
// whose path matches the regular expression of --run. Each file occurs once, and the files are
// sorted.
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

// findBelow returns the scenario at a path, or all scenarios below the folder there.
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

// load decodes a configuration as a manager does at its start: without the last valid declarations
// of earlier configurations.
func (r *Runner) load(ctx context.Context, snapshot configdir.Snapshot) load.Result {
	digest := snapshot.Digest()
	result, ok := r.loaded[digest]
	if !ok {
		result = load.NewLoader().Load(ctx, snapshot)
		if len(result.Errors) == 0 && r.loaded == nil {
			r.loaded = map[ident.Digest]load.Result{}
		}
		if len(result.Errors) == 0 {
			r.loaded[digest] = result
		}
	}
	return result
}

// Run runs one scenario.
func (r *Runner) Run(ctx context.Context, file string) Result {
	begin := time.Now()
	t := &scriptT{verbose: r.Verbose}
	data, err := os.ReadFile(file)
	if err == nil {
		err = checkScenario(file, txtar.Parse(data))
	}
	if err != nil {
		t.failed = true
		fmt.Fprintf(&t.log, "FAIL: %v\n", err)
	} else {
		t.Run(file, func(testscript.T) { testscript.RunT(t, r.params(ctx, file)) })
	}
	return t.result(file, time.Since(begin))
}

func (r *Runner) params(ctx context.Context, file string) testscript.Params {
	return testscript.Params{
		Files:              []string{file},
		Cmds:               scriptCommands(),
		UpdateScripts:      r.Update,
		RequireUniqueNames: true,
		Setup: func(env *testscript.Env) error {
			if err := r.unpackConfig(env.WorkDir); err != nil {
				return err
			}
			st := &session{runner: r, ctx: ctx, dir: env.WorkDir, drained: map[string]bool{}}
			env.Values[sessionKey{}] = st
			if _, err := os.Stat(filepath.Join(env.WorkDir, configFolder)); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return st.begin()
		},
	}
}

// configFolder is the folder with the configuration at the start of a scenario.
const configFolder = "config"

// unpackConfig adds the files of UseConfig to the files of the scenario. A file of the scenario
// replaces a file of UseConfig with the same name.
func (r *Runner) unpackConfig(dir string) error {
	if r.config == nil {
		return nil
	}
	for _, f := range r.config.Files {
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

// scriptT implements testscript.T. testscript ends a scenario with FailNow or Skip, which must
// not return: scriptT panics there, and Run recovers.
type scriptT struct {
	verbose    bool
	failed     bool
	skipped    bool
	skipReason string
	log        strings.Builder
}

var errScenarioEnded = errors.New("the scenario has ended")

// Run runs f until it ends.
func (t *scriptT) Run(_ string, f func(testscript.T)) {
	defer func() {
		if e := recover(); e != nil && e != error(errScenarioEnded) {
			panic(e)
		}
	}()
	f(t)
}

// Skip ends the scenario as skipped.
func (t *scriptT) Skip(reason ...any) {
	t.skipped, t.skipReason = true, fmt.Sprint(reason...)
	panic(errScenarioEnded)
}

// Fatal ends the scenario as failed.
func (t *scriptT) Fatal(message ...any) {
	t.Log(message...)
	t.FailNow()
}

// FailNow ends the scenario as failed.
func (t *scriptT) FailNow() {
	t.failed = true
	panic(errScenarioEnded)
}

// Log appends to the log.
func (t *scriptT) Log(message ...any) {
	fmt.Fprintln(&t.log, strings.TrimSuffix(fmt.Sprint(message...), "\n"))
}

// Parallel does nothing: scenarios run one after the other.
func (t *scriptT) Parallel() {}

// Verbose reports whether all parts of the scenario are logged.
func (t *scriptT) Verbose() bool { return t.verbose }

var (
	phaseTime = regexp.MustCompile(`(?m)^(#.*) \(\d+\.\d{3}s\)$`)
	failLine  = regexp.MustCompile(`(?ms)^FAIL: (.*)\z`)
)

// result returns the result of the scenario. It removes the environment and the durations that
// testscript has logged.
func (t *scriptT) result(file string, took time.Duration) Result {
	log := phaseTime.ReplaceAllString(t.log.String(), "$1")
	if strings.HasPrefix(log, "WORK=") {
		_, log, _ = strings.Cut(log, "\n\n")
	}
	log = strings.TrimSuffix(strings.TrimSuffix(log, "\n"), "PASS")
	r := Result{File: file, Outcome: passed, Seconds: took.Seconds()}
	if m := failLine.FindStringSubmatchIndex(log); m != nil {
		r.Message = strings.TrimSpace(log[m[2]:m[3]])
		r.Message = strings.TrimPrefix(r.Message, file+":0: ") // a failure before the first line
		log = log[:m[0]]
	}
	r.Log = strings.Trim(log, "\n")
	switch {
	case t.failed:
		r.Outcome = failed
	case t.skipped:
		r.Outcome, r.Message = skipped, t.skipReason
	}
	return r
}

// outcome is the end of a scenario.
type outcome string

const (
	passed  outcome = "ok"
	failed  outcome = "FAIL"
	skipped outcome = "skip"
)

// Result is the result of one scenario. Its JSON is a stable interface.
type Result struct {
	File    string  `json:"file"`
	Outcome outcome `json:"outcome"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"` // of a failure, with FILE:LINE, or of a skip
	Log     string  `json:"log,omitempty"`     // of the last part, or of all parts
}

// Results are the results of all scenarios. Their JSON is a stable interface.
type Results struct {
	Scenarios []Result `json:"scenarios"`
	Passed    int      `json:"passed"`
	Failed    int      `json:"failed"`
	Skipped   int      `json:"skipped"`
}

// Add adds the result of a scenario.
func (r *Results) Add(one Result) {
	r.Scenarios = append(r.Scenarios, one)
	switch one.Outcome {
	case passed:
		r.Passed++
	case failed:
		r.Failed++
	case skipped:
		r.Skipped++
	}
}

// Summary returns one line that counts the results.
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

// Write writes a line for the scenario. For a failed scenario, or with verbose, the log
// follows.
func (r Result) Write(w io.Writer, verbose bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %s (%.3fs)", r.Outcome, text.Line(r.File), r.Seconds)
	if r.Outcome == skipped && r.Message != "" {
		fmt.Fprintf(&b, ": %s", text.Line(r.Message))
	}
	b.WriteByte('\n')
	if r.Log != "" && (verbose || r.Outcome == failed) {
		indent(&b, r.Log)
	}
	if r.Outcome == failed {
		indent(&b, r.Message)
	}
	_, err := io.WriteString(w, text.Lines(b.String()))
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
