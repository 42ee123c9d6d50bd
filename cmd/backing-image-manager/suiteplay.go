package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
)

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
