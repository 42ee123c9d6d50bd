// Command testall runs all tests ("make test" and "make race"). It does these steps in order:
//
//  1. install the missing programs of package need with apt, if the process is root or sudo needs
//     no password, and print the names and reasons;
//  2. fetch the programs that are not installed as Debian packages, so that no test has to wait for them;
//  3. run "go test ./...", and the packages of raced again with the race detector if there is a C
//     compiler. "make check" has run go vet, so go test does not. With -race ("make race") it runs all
//     packages with the race detector, without those of sequential, and nothing else;
//  4. run the tests that failed again, without the others: a test may fail because the others use all
//     processors. A data race, a panic and a failure of the simulation are failures in any case;
//  5. print every reason for a skip with the affected tests, the tests that passed only alone, and the
//     line "N passed, N failed, N skipped".
//
// The exit code is 1 if a test failed, and with -strict also if a program is missing.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

func main() {
	strict := flag.Bool("strict", false, "a missing program is a failure instead of a skip")
	install := flag.Bool("install", true, "install missing programs through apt")
	withRace := flag.Bool("race", false, "run only the tests of all concurrent packages with the race detector")
	flag.Parse()
	packages := flag.Args()
	if len(packages) == 0 {
		packages = []string{"./..."}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, options{strict: *strict, install: *install, race: *withRace, packages: packages})
	if err != nil {
		fmt.Fprintln(os.Stderr, "testall:", err)
	}
	if err != nil || !ok {
		stop()
		os.Exit(1)
	}
}

// options are the flags and arguments.
type options struct {
	strict, install, race bool
	packages              []string // patterns
}

// pass is one run of go test.
type pass struct {
	cgo      string // value of CGO_ENABLED
	flags    []string
	packages []string
}

// sequential has the packages, by their path in the module, that start no goroutine and have no lock. Their
// tests run only without the race detector.
var sequential = []string{
	"disk/filetype", "docs", "fetch/host", "fetch/text",
	"internal/testx/testall", "reconcile/forecast", "reconcile/report", "reconcile/scenario",
	"schema/document", "schema/manifest",
}

// raced has the packages that "make test" runs with the race detector, too: their goroutines share the most
// data, and they do not import CUE. To compile CUE for the detector and to run all packages takes longer than
// all other tests.
var raced = []string{"fetch/auth", "fetch/upload"}

// withDetector returns the packages that match patterns and run with the race detector: all concurrent ones,
// or only those of raced.
func withDetector(ctx context.Context, patterns []string, all bool) ([]string, error) {
	out, err := need.Go(ctx, append([]string{"list"}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages: %w", err)
	}
	var found []string
	for importPath := range strings.FieldsSeq(string(out)) {
		p := short(importPath)
		if slices.Contains(raced, p) || all && !slices.Contains(sequential, p) {
			found = append(found, "./"+p)
		}
	}
	return found, nil
}

// run reports whether all tests passed.
func run(ctx context.Context, o options) (bool, error) {
	if err := os.Setenv("PATH", os.Getenv("PATH")+":"+need.SystemFolders); err != nil {
		return false, err
	}
	if o.install {
		installMissing(ctx)
	}
	missing := findMissing(ctx)
	env := append(os.Environ(), need.MissingVar+"="+strings.Join(missing.names, " "))
	if o.strict {
		env = append(env, need.StrictVar+"=1")
	}
	results := newResults(os.Stdout)
	var passes []pass
	if !o.race {
		passes = append(passes, pass{cgo: "0", packages: o.packages}) // like "make build"
	}
	if missing.compiles {
		with, err := withDetector(ctx, o.packages, o.race)
		if err != nil {
			return false, err
		}
		if len(with) > 0 {
			passes = append(passes, pass{cgo: "1", flags: []string{"-race"}, packages: with})
		}
	}
	ok := true
	for _, p := range passes {
		// Tests also wait for disks and timers, so two packages more than CPUs are tested at a time.
		args := slices.Concat(p.flags, []string{"-vet=off", "-trimpath", fmt.Sprintf("-p=%d", runtime.NumCPU()+2)}, p.packages)
		passed, err := goTest(ctx, results, append(env, "CGO_ENABLED="+p.cgo), args)
		if err == nil && !passed && ok {
			passed, err = again(ctx, results, append(env, "CGO_ENABLED="+p.cgo), p.flags)
		}
		if err != nil {
			return false, err
		}
		ok = ok && passed
	}
	if !missing.compiles {
		gcc, _ := need.Lookup("gcc")
		results.notRun(fmt.Sprintf("needs %s (Debian packages %s): it does not work", gcc.Name, strings.ReplaceAll(gcc.Packages, " ", ", ")),
			"all tests with the race detector")
		ok = ok && !o.strict && !o.race
	}
	results.summary()
	return ok, nil
}

// again runs the tests that failed again, and reports whether all passed.
func again(ctx context.Context, r *results, env, flags []string) (bool, error) {
	retriable := r.retriable()
	for _, p := range retriable {
		alone := newResults(r.out)
		args := slices.Concat(flags, []string{"-vet=off", "-trimpath", "-count=1", "-run=" + p.pattern(), "./" + p.pkg})
		passed, err := goTest(ctx, alone, env, args)
		if err != nil || !passed || alone.passed < len(p.tests) {
			return false, err
		}
	}
	if len(retriable) > 0 {
		r.passedAlone()
	}
	return len(retriable) > 0, nil
}

// goTest runs "go test" once and prints the results as they arrive.
func goTest(ctx context.Context, results *results, env, args []string) (passed bool, err error) {
	line := append([]string{"test", "-json"}, args...)
	fmt.Println("go", strings.Join(append([]string{"test"}, args...), " "))
	cmd := exec.CommandContext(ctx, "go", line...)
	cmd.Env = env
	cmd.Stderr = os.Stderr
	// The go command does not forward signals to the tests, so send the signal to the whole process
	// group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	if err := results.read(out); err != nil {
		return false, err
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		return false, fmt.Errorf("interrupted")
	}
	return err == nil, nil // go test has printed the error
}
