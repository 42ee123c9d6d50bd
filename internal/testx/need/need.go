// Package need checks the requirements of a test: programs and privileges. If one is missing, the
// test is skipped, and the message names the program and its Debian package, or the privilege.
//
// List is the only list of programs. The command testall ("make test") installs these programs, and
// Programs and Command accept no other name.
//
// Two environment variables change the behaviour; testall sets them:
//
//   - TESTX_MISSING contains the names of the programs that testall has not found, separated by
//     spaces. If it is set, it is authoritative. It also makes cached test results correct: go
//     test reuses a result while the variables that the test has read are unchanged, and it
//     would not detect that a program was installed.
//   - TESTX_STRICT=1 makes a missing program a failure instead of a skip. .ci/run sets it.
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

// SystemFolders are searched after $PATH, because Debian omits them from the $PATH of a user. They
// contain cryptsetup, ip, tc and mkfs.xfs.
const SystemFolders = "/usr/local/sbin:/usr/sbin:/sbin"

// T is the part of testing.TB and testscript.T that this package uses.
type T interface {
	Skip(...any)
	Fatal(...any)
}

// Programs skips the test if one of the programs is missing. If TESTX_STRICT is set, it fails the
// test instead. It also fails the test if a name is not in List.
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

// Command returns a command that runs one of the programs with its full path. Like Programs, it skips
// the test if the program is missing.
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

// Root skips the test if this process may not administer the machine: as an ordinary user, or as root
// in a container without CAP_SYS_ADMIN. The reason completes "needs root to …".
func Root(t T, reason string) {
	mark(t)
	switch {
	case os.Geteuid() != 0:
		t.Skip("needs root to " + reason)
	case !hasSysAdmin():
		t.Skip("needs root with CAP_SYS_ADMIN to " + reason)
	}
}

// hasSysAdmin reports whether this process may mount file systems and create namespaces.
func hasSysAdmin() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// Device skips the test if this process cannot open a device, such as /dev/loop-control in a
// container. The reason completes "needs DEVICE to …".
func Device(t T, device, reason string) {
	mark(t)
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		t.Skip(fmt.Sprintf("needs %s to %s: %v", device, reason, errors.Unwrap(err)))
	}
	f.Close()
}

// FUSE skips the test if this process cannot mount a FUSE file system: /dev/fuse must be writable,
// and a user other than root needs fusermount3.
func FUSE(t T) {
	mark(t)
	Device(t, "/dev/fuse", "mount a file system that injects faults")
	if os.Geteuid() == 0 {
		Root(t, "mount a file system that injects faults")
	} else {
		Programs(t, "fusermount3")
	}
}

// NetworkNamespaces skips the test if "ip netns exec" does not work: for an ordinary user, and in a
// chroot whose / is not a mount point.
func NetworkNamespaces(t T) {
	mark(t)
	Root(t, "make network namespaces")
	Programs(t, "ip", "unshare")
	// "ip netns exec" begins with this step.
	if out, err := exec.Command("unshare", "--mount", "--propagation", "slave", "true").CombinedOutput(); err != nil {
		t.Skip("needs network namespaces: " + strings.TrimSpace(string(out)))
	}
}

// Containers skips the test if runc cannot run containers.
func Containers(t T) {
	mark(t)
	NetworkNamespaces(t)
	Programs(t, "runc")
	if entries, err := os.ReadDir("/sys/fs/cgroup"); err != nil || len(entries) == 0 {
		t.Skip("needs control groups to run containers: /sys/fs/cgroup is not mounted")
	}
}

// mark makes the skip message show the line of the caller, if t supports this.
func mark(t T) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
}

// Path returns the full path of the program, from $PATH, SystemFolders or the folder into which Fetch
// extracts. For a Go program or an npm package, Path returns "", and an error only if testall could not fetch it.
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
	if p.Extract != "" {
		file, err := p.extracted()
		if err != nil {
			return "", err
		}
		return exec.LookPath(file)
	}
	return "", err
}

// extracted returns the file into which Fetch extracts the program.
func (p Program) extracted() (string, error) {
	cache, err := os.UserCacheDir()
	return filepath.Join(cache, "backing-image-manager-tests", p.Name), err
}

// Go returns a go command that compiles with the settings of "make build". It finds in the build cache
// what was compiled before, even if this test runs with the race detector.
func Go(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+os.Getenv("GOFLAGS")+" -trimpath")
	return cmd
}

// Fetch builds a Go program, installs an npm package, or extracts a program from its Debian package, so
// that no test has to wait for it. It does nothing if this was done before. root is the folder of this module.
func (p Program) Fetch(ctx context.Context, root string) error {
	if p.Extract != "" {
		if _, err := p.Path(); err == nil {
			return nil
		}
		return p.extract(ctx)
	}
	cmd := Go(ctx, "run", "-exec", "true", p.Module)
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

// extract downloads the Debian package and copies the program from it. It needs rights only if the lists of packages are not
// up to date.
func (p Program) extract(ctx context.Context) error {
	to, err := p.extracted()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(to), "package")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	const script = `get() { apt-get download -qq "$1"; }; get "$1" || { apt-get update -qq && get "$1"; } && dpkg-deb --fsys-tarfile ./*.deb | tar -xO "./$2" >program && test -s program && chmod 755 program`
	cmd := exec.CommandContext(ctx, "sh", "-c", script, "sh", p.Packages, p.Extract)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("extract %s from the Debian package %s: %w\n%s", p.Extract, p.Packages, err, out)
	}
	return os.Rename(filepath.Join(dir, "program"), to)
}

// skipText returns the reason for a skip. testall groups skips by this text, but does not parse it.
func (p Program) skipText() string {
	if p.Packages == "" {
		return fmt.Sprintf("needs %s (%s): it could not be fetched", p.Name, p.Module+p.NPM)
	}
	if p.Extract != "" {
		return fmt.Sprintf("needs %s (Debian package %s): it could not be extracted", p.Name, p.Packages)
	}
	return fmt.Sprintf("needs %s (Debian package %s): it is not installed", p.Name, strings.ReplaceAll(p.Packages, " ", ", "))
}
