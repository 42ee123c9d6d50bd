// Backing-image-manager keeps golden VM disk images on the disks of a cluster in the state
// that a directory of files declares.
//
// Each command has a file of its own with its flags, its help and its wiring. The commands
// call the packages reconcile, schema, fetch and disk, which do the work.
//
// Reading order: main.go (root command, exit codes, hints), flags.go (shared flags),
// config.go (reading the config directory), offline.go (disks without a daemon), log.go and
// progress.go (what a person sees), then one command, such as reconcile.go or daemon.go.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

func main() {
	sandbox.ChildMain()
	os.Exit(run())
}

// run executes the command line and returns the exit code. The tests call run in child processes.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills the process
	err := newRoot().ExecuteContext(ctx)
	if ctx.Err() != nil {
		err = stopped(err)
	}
	return exitCode(err)
}

// stopped returns err with "stopped" in place of each error that is context.Canceled. The errors of commands that say how
// to continue remain.
func stopped(err error) error {
	if all, ok := joined(err); ok {
		clear := make([]error, 0, len(all))
		for _, one := range all {
			clear = append(clear, stopped(one))
		}
		return errors.Join(clear...)
	}
	if errors.Is(err, context.Canceled) {
		return errors.New("stopped")
	}
	return err
}

// memoryGoal is the memory, in bytes, at which the garbage collector begins to work harder. Without the
// goal, the garbage of a load doubles the memory for the largest configuration. The result of a load and
// 10,000 images need less than the goal. A process that needs more gets it, but uses more processor time.
const memoryGoal = 200 << 20

// limitGarbage sets the memoryGoal, unless GOMEMLIMIT is set.
func limitGarbage() {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryGoal)
	}
}

// exitError ends the program with its own exit code. It prints nothing: the command has
// written its result.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// exitCode returns the exit code for err: 0 for nil, the code of an *exitError, and 1 for any other error. It prints the
// other errors with their hint. The command of an *exitError has already printed its result.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	writeError(os.Stderr, err)
	if hint, ok := hintFor(err); ok {
		report.WriteLine(os.Stderr, "hint: %s", hint)
	}
	return 1
}

// writeError writes one line for each of the joined errors.
func writeError(w io.Writer, err error) {
	for _, line := range errorLines(err) {
		report.WriteLine(w, "error: %s", line)
	}
}

// errorLines returns a printable line for each of the joined errors. An error may contain the name of a
// file or the response of another program. These must not control a terminal or add a line.
func errorLines(err error) (lines []string) {
	if all, ok := joined(err); ok {
		for _, one := range all {
			lines = append(lines, errorLines(one)...)
		}
		return lines
	}
	return []string{text.Line(strings.TrimSpace(err.Error()))}
}

// joined returns the errors that errors.Join has joined. For any other error, also of fmt.Errorf with
// several %w, ok is false.
func joined(err error) (all []error, ok bool) {
	e, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil, false
	}
	all = e.Unwrap()
	return all, errors.Join(all...).Error() == err.Error()
}

// hinter is an error that knows what the user can do about it.
type hinter interface {
	error
	Hint() (hint string, ok bool)
}

// hintFor returns what the user can do about an error, if that is known.
func hintFor(err error) (hint string, ok bool) {
	if e, ok := errors.AsType[*disk.FormatError](err); ok {
		return e.Hint, e.Hint != ""
	}
	if e, ok := errors.AsType[*damagedError](err); ok { // before hinter: to resume the download would not help
		return e.Hint()
	}
	if e, ok := errors.AsType[hinter](err); ok {
		return e.Hint()
	}
	switch {
	case errors.Is(err, disk.ErrLocked):
		return "a daemon or another run has locked the disk: use the daemon, or stop it first", true
	case errors.Is(err, disk.ErrNotInitialised) && errors.Is(err, fs.ErrNotExist):
		return "mount the disk there; for a new disk, make the folder and run: backing-image-manager disk init PATH", true
	case errors.Is(err, disk.ErrNotInitialised) && !errors.Is(err, fs.ErrPermission):
		return "if the disk is mounted and new, run: backing-image-manager disk init PATH", true
	}
	return "", false
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "backing-image-manager",
		Short: "Keep VM disk images on disks as a directory of files declares them",
		Long: `Keeps golden VM disk images (qcow2 or raw "backing images") on the disks of a
cluster in the state that a directory of files declares. One manager runs on each
node. All managers read the same directory, and no central service is needed.`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Example: `  backing-image-manager reconcile --config-dir config --disk /var/lib/longhorn --dry-run
  backing-image-manager backing-image list --disk /var/lib/longhorn`,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newDaemon(), newReconcile(), newValidate(), newUpdate(), newStatus(), newWait(), newImage(), newPublish(),
		newDisk(), newTest(), newSchema(), newHandle(), newDemo(), newVersion())
	prepareUsage(root)
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version, the commit and the version of Go",
		Example: "  backing-image-manager version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), version())
			return nil
		},
	}
}

// builtVersion and builtCommit are for a build without a git checkout, such as the build of a container
// image. The linker sets them: -X main.builtVersion=v1.2.3 -X main.builtCommit=0123456789ab.
var builtVersion, builtCommit string

// version returns the version, commit and Go version that the build recorded.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "backing-image-manager, unknown build"
	}
	release, commit := cmp.Or(builtVersion, info.Main.Version), cmp.Or(builtCommit, "unknown")
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				commit += "+changes"
			}
		}
	}
	return fmt.Sprintf("backing-image-manager %s, commit %s, %s", release, commit, info.GoVersion)
}
