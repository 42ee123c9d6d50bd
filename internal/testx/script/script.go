// Package script runs the scenarios in testdata/script. They are testscript scripts that execute the
// real program. Their additional commands and variables are documented in testdata/script/README.md.
//
// Reading order: script.go runs the scripts and creates the default setup; commands.go contains the
// table of commands, from which the README is generated; the other files contain the commands by
// subject: files, images, upstream servers, HTTP, clusters, the status of daemons, and Longhorn.
//
// A command of the table returns an error. A script can negate a command that asserts something ("!
// same a b"), and repeat it until it succeeds ("eventually same a b").
package script

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// timeout is the maximum time for which a scenario waits for an event.
const timeout = time.Minute

// Program is the name by which scripts execute the program. testscript.Main registers its main
// function.
const Program = "backing-image-manager"

// Params are the parameters of Run.
type Params struct {
	Root       string // of the module
	Package    string // folder of the main package
	Update     bool   // update the expected output of cmp commands in the scripts
	RepairSize int64  // size of the image in which the scenario cluster_repair damages a chunk
}

// Run runs the scenarios as subtests. With the race detector, it runs only the scenarios in which a
// process with the detector runs. The other scenarios run without the detector.
func Run(t *testing.T, p Params) {
	r := runner{params: p}
	var err error
	if r.params.Root, err = filepath.Abs(p.Root); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(p.Root, "testdata/script/*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	if race.Enabled {
		if r.plain, err = buildPlain(p.Package, t.TempDir()); err != nil {
			t.Fatal(err)
		}
		files = slices.DeleteFunc(files, func(file string) bool { return !runsWithRace(t, file) })
	}
	testscript.Run(t, testscript.Params{
		Files:               files,
		Setup:               r.setup,
		Cmds:                testscriptCommands(),
		UpdateScripts:       p.Update,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

// runner contains the state that all scripts share.
type runner struct {
	params Params
	plain  string // folder of the program without the race detector; empty if this test runs without it
}

// script is a running scenario for one command: testscript's state, the processes that commands
// started, and the output of this command.
type script struct {
	*testscript.TestScript
	*state
	stdout, stderr *bytes.Buffer
}

// state contains the processes and servers that the commands of one script started.
type state struct {
	t         testscript.T
	plain     string               // as in runner
	root      string               // of the module
	upstreams map[string]*upstream // by the variable that contains the address
	proxies   map[string]*proxy    // by the variable that contains the address
	daemons   map[string]*exec.Cmd // by node name, without stopped daemons
	responses map[string]io.Closer // by the name in the script
}

type stateKey struct{}

// setup sets the variables of a script, and creates the default setup.
func (r *runner) setup(env *testscript.Env) error {
	data := map[string]string{
		"LONGHORN":  "disk/testdata/longhorn",
		"HARVESTER": "schema/load/testdata/harvester",
		"REPLICAS":  "disk/testdata/longhorn/replicas",
		"BACKUPS":   "fetch/backup/testdata",
		"EXAMPLES":  "examples",
	}
	for name, folder := range data {
		env.Setenv(name, filepath.Join(r.params.Root, folder))
	}
	env.Setenv("NODE_NAME", "node1")          // independent of the host name
	env.Setenv("GORACE", "atexit_sleep_ms=0") // otherwise each process waits one second at its end
	size := r.params.RepairSize
	env.Setenv("REPAIR_SIZE", fmt.Sprint(size))
	env.Setenv("REPAIR_MOST", fmt.Sprint(disk.ChunkSize+(size+disk.ChunkSize-1)/disk.ChunkSize*disk.ChunkHashSize+1))
	if race.Enabled {
		r.setPath(env)
	}
	state := &state{
		t: env.T(), plain: r.plain, root: r.params.Root,
		upstreams: map[string]*upstream{}, proxies: map[string]*proxy{},
		daemons: map[string]*exec.Cmd{}, responses: map[string]io.Closer{},
	}
	env.Values[stateKey{}] = state
	file := filepath.Join(r.params.Root, "testdata/script", scriptName(env)+".txtar")
	text, err := os.ReadFile(file)
	if err != nil || noSetup.Match(text) {
		return err
	}
	return defaultSetup(env, state)
}

var noSetup = regexp.MustCompile(`(?m)^setup none$`)

// defaultSetup creates the files that the README lists under "Default setup".
func defaultSetup(env *testscript.Env, state *state) error {
	u, server := newUpstream(filepath.Join(env.WorkDir, "upstream"))
	env.Defer(func() { u.close(server) })
	state.upstreams["UPSTREAM"] = u
	listen, err := freeport.Address("127.0.0.1")
	if err != nil {
		return err
	}
	env.Setenv("UPSTREAM", server.URL)
	env.Setenv("LISTEN", listen)
	env.Setenv("URL", "http://"+listen)
	if err := os.MkdirAll(u.dir, 0o755); err != nil {
		return err
	}
	if err := initDisk(filepath.Join(env.WorkDir, "disk")); err != nil {
		return err
	}
	conf := filepath.Join(env.WorkDir, "conf")
	if err := writeFile(filepath.Join(conf, "loopback.yaml"), "settings: {allowLoopbackSources: true}\n"); err != nil {
		return err
	}
	return filepath.WalkDir(conf, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(path, setupVariable.ReplaceAllFunc(text, func(name []byte) []byte {
			return []byte(env.Getenv(string(name[1:])))
		}), 0o644)
	})
}

// setupVariable matches the variables that have a value before the first command.
var setupVariable = regexp.MustCompile(`\$(UPSTREAM|LISTEN|URL|WORK|NODE_NAME|LONGHORN|REPLICAS|BACKUPS|EXAMPLES|REPAIR_SIZE|REPAIR_MOST)\b`)

func scriptName(env *testscript.Env) string {
	return strings.TrimPrefix(filepath.Base(env.WorkDir), "script-")
}

// setPath makes a script execute the program without the race detector, except for daemons and
// uploads in scripts about them. The other commands have little concurrency, and take three times as
// long with the detector. (The start command always starts node1 with the detector.)
func (r *runner) setPath(env *testscript.Env) {
	path := env.Getenv("PATH")
	folder := r.plain
	if raceScript(scriptName(env)) {
		withRace, _, _ := strings.Cut(path, string(filepath.ListSeparator)) // testscript.Main adds it as the first element
		env.Setenv("RACED", filepath.Join(withRace, Program))
		folder = filepath.Join(r.plain, "mixed")
	}
	env.Setenv("PATH", folder+string(filepath.ListSeparator)+path)
}

func raceScript(name string) bool {
	return strings.HasPrefix(name, "daemon") || strings.HasPrefix(name, "upload")
}

func runsWithRace(t *testing.T, file string) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return raceScript(strings.TrimSuffix(filepath.Base(file), ".txtar")) || startsNode1.Match(text)
}

var startsNode1 = regexp.MustCompile(`(?m)^start node1`)

// buildPlain builds the program without the race detector into dir, like "make build". The program in
// the folder mixed executes $RACED, the program with the detector, only for long-running commands.
func buildPlain(pkg, dir string) (string, error) {
	build := need.Go(context.Background(), "build", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(dir, Program), ".")
	build.Dir = pkg
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	if err := os.Mkdir(filepath.Join(dir, "mixed"), 0o755); err != nil {
		return "", err
	}
	text := "#!/bin/sh\ncase \"$1 $2\" in \"daemon \"* | \"backing-image upload\") exec \"$RACED\" \"$@\" ;; esac\nexec " + filepath.Join(dir, Program) + " \"$@\"\n"
	return dir, os.WriteFile(filepath.Join(dir, "mixed", Program), []byte(text), 0o755)
}

// waitFor calls done until it returns true.
func (s script) waitFor(otherwise string, done func() bool) {
	again := time.NewTicker(100 * time.Millisecond) // each call costs time of the program under test
	defer again.Stop()
	over := time.After(timeout)
	for !done() {
		select {
		case <-again.C:
		case <-over:
			s.Fatalf("%s within %v", otherwise, timeout)
		}
	}
}
