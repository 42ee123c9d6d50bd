// Backing-image-manager keeps golden VM disk images on the disks of a cluster
// exactly as a directory of files says.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

func main() {
	sandbox.ChildMain()
	os.Exit(run())
}

// run is main for the tests, which run it in a process of their own.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := newRoot().ExecuteContext(ctx)
	return exitCode(err)
}

// exitError ends the program with a code of its own. An empty message prints
// nothing: what was to be said has been said.
type exitError struct {
	code    int
	message string
}

func (e *exitError) Error() string { return e.message }

// exitCode prints an error for people and maps it to the exit code: 1, whatever it
// is, unless a command chose another.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	code := 1
	if e, ok := errors.AsType[*exitError](err); ok {
		code = e.code
	}
	if err.Error() != "" {
		writeError(os.Stderr, err)
		if hint := hintFor(err); hint != "" {
			fmt.Fprintf(os.Stderr, "hint: %s\n", hint)
		}
	}
	return code
}

// writeError writes a line for each of joined errors. They may hold what another program
// answered, which is not to be obeyed by a terminal.
func writeError(w io.Writer, err error) {
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(w, "error: %s\n", report.OneLine(line))
	}
}

// hintFor says what to do about an error, where that can be known.
func hintFor(err error) string {
	if e, ok := errors.AsType[*disk.FormatError](err); ok {
		return e.Hint
	}
	if _, ok := errors.AsType[*damagedError](err); ok {
		return "backing-image verify reads it again and marks it, and it is replaced then"
	}
	if e, ok := errors.AsType[*keptError](err); ok {
		return e.hint()
	}
	if e, ok := errors.AsType[*api.UnreachableError](err); ok {
		hint, _ := e.Hint()
		return hint
	}
	switch {
	case errors.Is(err, disk.ErrLocked):
		return "a daemon or another run holds the disk: ask it instead, or stop it first"
	case errors.Is(err, disk.ErrNotInitialised) && errors.Is(err, fs.ErrNotExist):
		return "mount the disk there; if it is new, make the folder and run: backing-image-manager disk init PATH"
	case errors.Is(err, disk.ErrNotInitialised) && !errors.Is(err, fs.ErrPermission):
		return "if the disk is mounted and new, run: backing-image-manager disk init PATH"
	}
	return ""
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "backing-image-manager",
		Short: "Keep VM disk images on disks as a directory of files says",
		Long: `Keeps golden VM disk images (qcow2 or raw "backing images") on the disks of a
cluster exactly as a directory of files says. One manager runs on each node; all
read the same directory, and nobody coordinates them.`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Example: `  backing-image-manager reconcile --config-dir config --disk /var/lib/longhorn --dry-run
  backing-image-manager backing-image list --disk /var/lib/longhorn`,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.AddCommand(newDaemon(), newStatus(), newWait(), newVersion())
	root.AddCommand(newReconcile())
	root.AddCommand(newDisk())
	root.AddCommand(newImage())
	root.AddCommand(newValidate(), newTest())
	root.AddCommand(newDemo())
	root.AddCommand(newSchema())
	root.AddCommand(newHandle())
	prepareUsage(root)
	return root
}
