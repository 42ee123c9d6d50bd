// Package netns creates network namespaces for tests. A namespace has its own addresses, links and
// rates, and no connection to other networks.
package netns

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// Namespace is the name of a network namespace, as ip-netns(8) uses it.
type Namespace string

// New creates a namespace with an active loopback interface, which exists until the test ends. If
// this is not possible, it skips the test.
func New(tb testing.TB, name string) Namespace {
	tb.Helper()
	need.NetworkNamespaces(tb)
	n := Namespace(name)
	Run(tb, "ip", "netns", "add", name)
	tb.Cleanup(func() { Run(tb, "ip", "netns", "del", name) })
	n.IP(tb, "link", "set", "lo", "up")
	return n
}

// IP runs "ip -n NAME ARG...".
func (n Namespace) IP(tb testing.TB, args ...string) {
	tb.Helper()
	Run(tb, append([]string{"ip", "-n", string(n)}, args...)...)
}

// Exec returns the prefix of a command line that runs in the namespace.
func (n Namespace) Exec() []string { return []string{"ip", "netns", "exec", string(n)} }

// Link connects the interface name of the namespace to the interface peer of another namespace. Both
// interfaces are down.
func (n Namespace) Link(tb testing.TB, name string, other Namespace, peer string) {
	tb.Helper()
	Run(tb, "ip", "link", "add", "name", name, "netns", string(n), "type", "veth", "peer", "name", peer, "netns", string(other))
}

// Enter calls f on a thread in the namespace. A socket remains in the namespace in which it was
// created.
func (n Namespace) Enter(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer before.Close()
	target, err := os.Open(filepath.Join("/run/netns", string(n)))
	if err != nil {
		return err
	}
	defer target.Close()
	if err := unix.Setns(int(target.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	defer func() {
		if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err) // otherwise another goroutine would continue in the namespace
		}
	}()
	return f()
}

// Run runs a command line. If it fails, the test continues, so that its cleanups run.
func Run(tb testing.TB, line ...string) {
	tb.Helper()
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		tb.Errorf("%v: %v: %s", line, err, out)
	}
}
