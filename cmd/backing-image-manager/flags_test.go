package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
)

// try runs a command line within the test.
func try(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	root := newRoot()
	root.SetArgs(append([]string{}, args...)) // nil stands for the arguments of the test program
	root.SetOut(&out)
	root.SetErr(&errOut)
	err = root.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	visitCommands(newRoot(), func(cmd *cobra.Command) {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			return // cobra's own
		}
		if cmd.Short == "" || !strings.Contains(cmd.Example, cmd.CommandPath()) {
			t.Errorf("%s: short is %q, example is %q", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
		out, _, err := try(t, append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		if err != nil || !strings.Contains(out, "Examples:") {
			t.Errorf("%s --help: error %v, output %q", cmd.CommandPath(), err, out)
		}
	})
}

func TestUsageErrorsAreOneLineWithAHint(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"recncile", `unknown command "recncile" for "backing-image-manager": did you mean reconcile?`},
		{"list", `unknown command "list" for "backing-image-manager": did you mean backing-image or disk or test?`},
		{"apply", `unknown command "apply" for "backing-image-manager": did you mean reconcile?`},
		{"disk ini /x", `unknown command "ini" for "backing-image-manager disk": did you mean init?`},
		{"disk", `backing-image-manager disk needs a command: check, init`},
		{"disk init", `backing-image-manager disk init takes PATH, but 0 arguments were given`},
		{"reconcile --confg-dir x", `unknown flag: --confg-dir: did you mean --config-dir?`},
		{"reconcile --whatever", `unknown flag: --whatever`},
		{"reconcile", `--config-dir is missing: name the config directory`},
		{"reconcile --config-dir x extra", `backing-image-manager reconcile takes no arguments, but 1 was given`},
		{"reconcile --config-dir x --detailed-exitcode", `--detailed-exitcode is for --dry-run: a real run exits with 0 or 1`},
		{"reconcile --config-dir x -o xml", `invalid argument "xml" for "-o, --output" flag: must be one of text, json, yaml, markdown`},
		{"validate", `name a directory or a file to check`},
		{"backing-image list --url http://x --disk y", `--url and --disk are mutually exclusive: name a daemon or a disk`},
		{"status --url localhost:8000", `--url is not the address of a daemon: write http://HOST:PORT`},
		{"disk init testdata/none", `initialise disk: open testdata/none: no such file or directory: mount the disk there, or make the folder`},
		{"reconcile --config-dir x --secrets-dir testdata/none", `read --secrets-dir: stat testdata/none: no such file or directory`},
		{"reconcile --config-dir x --disk y --disk y/", `--disk y/ is given twice: name each disk once`},
		{"backing-image get", `backing-image-manager backing-image get takes NAME, but 0 arguments were given`},
	} {
		stdout, stderr, err := try(t, strings.Fields(c.line)...)
		if err == nil || err.Error() != c.want || stdout+stderr != "" {
			t.Errorf("%s:\n got %v\nwant %s\noutput %q", c.line, err, c.want, stdout+stderr)
		}
		if exitCode(err) != 1 {
			t.Errorf("%s: exit code %d", c.line, exitCode(err))
		}
	}
}

func TestVersionCommandAndFlagPrintTheSame(t *testing.T) {
	word, _, err := try(t, "version")
	flag, _, flagErr := try(t, "--version")
	if err != nil || flagErr != nil || flag != word {
		t.Errorf("version: %v, %q\n--version: %v, %q", err, word, flagErr, flag)
	}
}

func TestProgramWithoutArgumentsPrintsItsHelp(t *testing.T) {
	out, _, err := try(t)
	if err != nil || !strings.Contains(out, "Available Commands:") {
		t.Errorf("error %v, output %q", err, out)
	}
}

// A daemon must not control the terminal of a command.
func TestErrorsContainNoControlCharacters(t *testing.T) {
	var b strings.Builder
	refused := &api.RefusedError{Address: "http://x", Response: httperror.Error{Status: 403, Message: "no \x1b[2J\x1b]0;title\a"}}
	writeError(&b, errors.Join(refused, errors.New(" ü\tnot read ")))
	if want := "error: the daemon at http://x refuses: no \ufffd[2J\ufffd]0;title\ufffd\nerror: ü\ufffdnot read\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
