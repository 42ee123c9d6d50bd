// Package need states what a test needs from the machine: programs and rights. A test that
// lacks one is skipped, and the skip names the program, its Debian package, or the right.
//
// List is the only list of programs. Command testall ("make test") installs from it, and
// Programs and Command accept no other name.
//
// Two environment variables, which testall sets, change what the functions do:
//
//   - TESTX_MISSING names the programs that testall has not found, separated by spaces. It is
//     authoritative if it is set. It also makes cached results correct: go test reuses a result
//     only while the variables that the test has read are unchanged, and it does not see that
//     a program was installed.
//   - TESTX_STRICT=1 turns a skip for a missing program into a failure. .ci/run sets it.
package need

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Names of the environment variables of this package.
const (
	MissingVar = "TESTX_MISSING"
	StrictVar  = "TESTX_STRICT"
)

// SystemFolders are searched after $PATH: Debian leaves them out of the $PATH of a user, and
// cryptsetup, ip, tc and mkfs.xfs are in them.
const SystemFolders = "/usr/local/sbin:/usr/sbin:/sbin"

// T is the part of testing.TB and testscript.T that this package uses.
type T interface {
	Skip(...any)
	Fatal(...any)
}

// Programs skips the test unless all the programs are there. It fails the test instead if
// TESTX_STRICT is set, and if a name is not in List.
func Programs(t T, names ...string) {
	mark(t)
	for _, name := range names {
		p, found := Lookup(name)
		if !found {
			t.Fatal("internal/testx/need has no program " + name + ": add it to List")
		}
		if _, err := p.Path(); err == nil {
			continue
		}
		if os.Getenv(StrictVar) == "1" {
			t.Fatal(p.skipText())
		}
		t.Skip(p.skipText())
	}
}

// Command returns a command that runs one of the programs, with its full path. Like Programs,
// it skips the test if the program is missing.
func Command(t T, name string, args ...string) *exec.Cmd {
	mark(t)
	Programs(t, name)
	p, _ := Lookup(name)
	path, err := p.Path()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// Root skips the test of a process that may not administer the machine: an ordinary user, or
// root in a container without CAP_SYS_ADMIN. The reason completes "needs root to …".
func Root(t T, reason string) {
	mark(t)
	switch {
	case os.Geteuid() != 0:
		t.Skip("needs root to " + reason)
	case !hasSysAdmin():
		t.Skip("needs root with CAP_SYS_ADMIN to " + reason)
	}
}

// hasSysAdmin reports whether this process may mount file systems and make namespaces.
func hasSysAdmin() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Device skips the test of a process that cannot open a device, such as /dev/loop-control in
// a container. The reason completes "needs DEVICE to …".
func Device(t T, device, reason string) {
	mark(t)
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		t.Skip(fmt.Sprintf("needs %s to %s: %v", device, reason, errors.Unwrap(err)))
	}
	f.Close()
}

// FUSE skips the test where this process cannot mount a FUSE file system: /dev/fuse has to be
// writable, and a user who is not root needs fusermount3.
func FUSE(t T) {
	mark(t)
	Device(t, "/dev/fuse", "mount a file system that injects faults")
	if os.Geteuid() == 0 {
		Root(t, "mount a file system that injects faults")
	} else {
		Programs(t, "fusermount3")
	}
}

// NetworkNamespaces skips the test where "ip netns exec" does not work: for an ordinary user,
// and in a chroot whose / is no mount point.
func NetworkNamespaces(t T) {
	mark(t)
	Root(t, "make network namespaces")
	Programs(t, "ip", "unshare")
	// This is the first step of "ip netns exec".
	if out, err := exec.Command("unshare", "--mount", "--propagation", "slave", "true").CombinedOutput(); err != nil {
		t.Skip("needs network namespaces: " + strings.TrimSpace(string(out)))
	}
}

// Containers skips the test where runc cannot run containers.
func Containers(t T) {
	mark(t)
	NetworkNamespaces(t)
	Programs(t, "runc")
	if entries, err := os.ReadDir("/sys/fs/cgroup"); err != nil || len(entries) == 0 {
		t.Skip("needs control groups to run containers: /sys/fs/cgroup is not mounted")
	}
}

// mark makes the line of the caller the line of the skip, where t can do that.
func mark(t T) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
}

// Path returns the full path of the program, from $PATH and SystemFolders. A program that Fetch
// fetches has none: Path returns "" for it, and an error only if testall could not fetch it.
func (p Program) Path() (string, error) {
	if missing, set := os.LookupEnv(MissingVar); set && slices.Contains(strings.Fields(missing), p.Name) {
		return "", fmt.Errorf("%s: %w", p.Name, exec.ErrNotFound)
	}
	if p.Packages == "" {
		return "", nil
	}
	path, err := exec.LookPath(p.Name)
	if err == nil {
		return path, nil
	}
	for _, folder := range filepath.SplitList(SystemFolders) {
		if path, err := exec.LookPath(filepath.Join(folder, p.Name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// Fetch builds a Go program, or installs an npm package, so that no test has to wait for it.
// It does nothing if the go command or the folder has it already. root is the folder of our
// module.
func (p Program) Fetch(ctx context.Context, root string) error {
	cmd := exec.CommandContext(ctx, "go", "run", "-exec", "true", p.Module)
	if p.NPM != "" {
		installing.Lock()
		defer installing.Unlock()
		if _, err := os.Stat(filepath.Join(root, p.NPM, "node_modules", ".package-lock.json")); err == nil {
			return nil
		}
		cmd = exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		cmd.Dir = filepath.Join(root, p.NPM)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

var installing sync.Mutex // npm

// skipText is parsed by nobody: testall groups skips by their whole text.
func (p Program) skipText() string {
	if p.Packages == "" {
		return fmt.Sprintf("needs %s (%s): it could not be fetched", p.Name, p.Module+p.NPM)
	}
	return fmt.Sprintf("needs %s (Debian package %s): it is not installed", p.Name, strings.ReplaceAll(p.Packages, " ", ", "))
}
