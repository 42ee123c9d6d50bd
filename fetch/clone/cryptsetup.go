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

// cryptsetupTimeout is much longer than cryptsetup needs for any header that package luks accepts.
const cryptsetupTimeout = 5 * time.Minute

// programFolders are searched for cryptsetup in addition to $PATH. The $PATH of a daemon without root
// lacks the folders where cryptsetup usually is.
const programFolders = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"

// fdPath returns the path of the n-th extra file, as the process of cryptsetup sees it.
func fdPath(n int) string { return fmt.Sprintf("/proc/self/fd/%d", 3+n) }

// cryptsetup runs the program with the passphrase on standard input, and returns its output, which
// the caller must wipe. The program is killed when ctx ends, and when this process ends.
func cryptsetup(ctx context.Context, passphrase []byte, files []*os.File, args ...string) ([]byte, error) {
	path, err := findProgram(os.Getenv("PATH") + ":" + programFolders)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, cryptsetupTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, path, args...)
	cmd.Env = []string{"PATH=" + programFolders, "LC_ALL=C"}
	cmd.Dir = "/"
	cmd.Stdin = bytes.NewReader(passphrase)
	cmd.ExtraFiles = files
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Pdeathsig takes effect when the thread that started the program ends, so keep this thread.
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
	return nil, exitError(err, limited.Err() != nil)
}

func findProgram(folders string) (string, error) {
	for _, folder := range filepath.SplitList(folders) {
		path := filepath.Join(folder, "cryptsetup")
		if info, err := os.Stat(path); filepath.IsAbs(path) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fetch.Errorf(fetch.BadConfig, "the program cryptsetup is missing: install it (Debian package cryptsetup-bin)")
}

// errPassphrase means that no key slot can be opened with the passphrase.
var errPassphrase = errors.New("the passphrase is wrong")

// The exit codes of cryptsetup with a specific meaning.
const (
	exitPassphrase = 2
	exitMemory     = 3
)

// exitError returns the error for a failed run of cryptsetup.
func exitError(err error, late bool) error {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case late:
		return fetch.Errorf(fetch.BadConfig, "cryptsetup took more than %s", cryptsetupTimeout)
	case !ok:
		return fmt.Errorf("run cryptsetup: %w", err)
	case exit.ExitCode() == exitPassphrase:
		return fetch.Errorf(fetch.BadConfig, "%w", errPassphrase)
	case exit.ExitCode() == exitMemory, !exit.Exited():
		return fetch.Errorf(fetch.BadConfig, "cryptsetup failed (%s), perhaps because memory was insufficient: a passphrase may need 1 GiB; %s in the secret sets a lower limit in KiB", exit.ProcessState, fileMemory)
	}
	return fetch.Errorf(fetch.BadConfig, "cryptsetup: %s", firstLine(exit.Stderr))
}

// firstLine returns the first line of cryptsetup's error output, which never contains a key.
func firstLine(stderr []byte) string {
	for line := range strings.Lines(string(stderr)) {
		if line = strings.TrimSpace(line); line != "" {
			return strings.ToValidUTF8(line[:min(len(line), 200)], "")
		}
	}
	return "it failed without a message"
}

// memoryFile creates an anonymous file in memory. Only the written parts use memory.
func memoryFile(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("luks-header", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "luks-header")
	if err := f.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("create a file in memory: %w", err), f.Close())
	}
	return f, nil
}

// pipeWith returns the read end of a pipe that contains b. b must fit into the buffer of the pipe.
func pipeWith(b []byte) (*os.File, error) {
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
