// Package netns makes network namespaces for tests, which then have addresses, links and
// rates of their own and reach nothing else.
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

// New makes a namespace whose loopback interface is up, until the test ends. It skips the
// test where that is not possible.
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

// Exec returns the beginning of a command line that runs in the namespace.
func (n Namespace) Exec() []string { return []string{"ip", "netns", "exec", string(n)} }

// Link connects the interface name of the namespace to the interface peer of another one. Both
// are down.
func (n Namespace) Link(tb testing.TB, name string, other Namespace, peer string) {
	tb.Helper()
	Run(tb, "ip", "link", "add", "name", name, "netns", string(n), "type", "veth", "peer", "name", peer, "netns", string(other))
}

// Enter calls f on a thread in the namespace. A socket stays in the namespace in which it was
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
			panic(err) // otherwise another goroutine continues in the namespace
		}
	}()
	return f()
}

// Run runs a command line, and lets the test continue to its cleanups if that fails.
func Run(tb testing.TB, line ...string) {
	tb.Helper()
	if out, err := exec.Command(line[0], line[1:]...).CombinedOutput(); err != nil {
		tb.Errorf("%v: %v: %s", line, err, out)
	}
}
