package clone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// patience is far more than a header takes that package luks has let pass.
const patience = 5 * time.Minute

// programFolders are where cryptsetup is, besides $PATH: a daemon that is not root's
// has none of them there.
const programFolders = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"

// file returns how cryptsetup names the n-th of its files.
func file(n int) string { return fmt.Sprintf("/proc/self/fd/%d", 3+n) }

// cryptsetup runs the program, gives it the passphrase, and returns what it prints, which
// the caller wipes. It ends with ctx, and with this process, however that ends.
func cryptsetup(ctx context.Context, passphrase []byte, files []*os.File, args ...string) ([]byte, error) {
	path, err := findProgram(os.Getenv("PATH") + ":" + programFolders)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cmd := exec.CommandContext(limited, path, args...)
	cmd.Env = []string{"PATH=" + programFolders, "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(passphrase)
	cmd.ExtraFiles = files
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The kernel takes the end of the thread that has started it for ours.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	clear(out)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, explain(err, limited.Err() != nil)
}

func findProgram(folders string) (string, error) {
	for _, folder := range filepath.SplitList(folders) {
		path := filepath.Join(folder, "cryptsetup")
		if info, err := os.Stat(path); filepath.IsAbs(path) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fail(fetch.BadConfig, "the program cryptsetup is not here: install it (Debian's package is cryptsetup-bin)")
}

// errPassphrase says that no key slot can be opened with the passphrase.
var errPassphrase = errors.New("the passphrase is wrong")

// The exit codes of cryptsetup that say more than that it failed.
const (
	exitPassphrase = 2
	exitMemory     = 3
)

// explain says what an end of cryptsetup means.
func explain(err error, late bool) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case late:
		return fail(fetch.BadConfig, "cryptsetup took more than %s", patience)
	case !ok:
		return fmt.Errorf("run cryptsetup: %w", err)
	case exit.ExitCode() == exitPassphrase:
		return fail(fetch.BadConfig, "%w", errPassphrase)
	case exit.ExitCode() == exitMemory, !exit.Exited():
		return fail(fetch.BadConfig, "cryptsetup was ended (%s): perhaps for lack of memory, of which a passphrase takes up to 1 GiB unless %s in the secret says how many KiB", exit.ProcessState, fileMemory)
	}
	return fail(fetch.BadConfig, "cryptsetup: %s", firstLine(exit.Stderr))
}

// firstLine is what cryptsetup says is wrong. It never says a key.
func firstLine(stderr []byte) string {
	for line := range strings.Lines(string(stderr)) {
		if line = strings.TrimSpace(line); line != "" {
			return strings.ToValidUTF8(line[:min(len(line), 200)], "")
		}
	}
	return "it failed and did not say why"
}

// inMemory makes a file of so many bytes that has no name and takes no room yet.
func inMemory(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("luks-header", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "luks-header")
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("make a file in memory: %w", err), f.Close())
	}
	return f, nil
}

// pipeOf returns the reading end of a pipe with these few bytes in it.
func pipeOf(b []byte) (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.Write(b)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}
