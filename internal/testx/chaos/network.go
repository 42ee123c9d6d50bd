package chaos

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/netns"
)

// network connects a namespace for each node to a bridge. The namespace of the bridge also has the
// upstream and the observer, at addresses of their own, so that a fault between a node and the
// upstream does not stop the observer.
type network struct {
	hub   netns.Namespace
	nodes []netns.Namespace
}

const (
	upstreamAddress = "10.77.0.253"
	observerAddress = "10.77.0.254"
	nobody          = "02:00:00:00:00:01" // an Ethernet address that no interface has
)

func nodeAddress(i int) string { return fmt.Sprintf("10.77.0.%d", i+1) }

// newNetwork creates the namespaces, which exist until the test ends.
func newNetwork(tb testing.TB, nodes int) *network {
	w := &network{hub: netns.New(tb, fmt.Sprintf("chaos%d", os.Getpid()))}
	w.hub.IP(tb, "link", "add", "br0", "type", "bridge")
	for _, address := range []string{observerAddress, upstreamAddress} {
		w.hub.IP(tb, "addr", "add", address+"/24", "dev", "br0")
	}
	w.hub.IP(tb, "link", "set", "br0", "up")
	for i := range nodes {
		name := fmt.Sprint("node", i+1)
		n := netns.New(tb, string(w.hub)+"-"+name)
		n.Link(tb, "eth0", w.hub, name)
		n.IP(tb, "addr", "add", nodeAddress(i)+"/24", "dev", "eth0")
		n.IP(tb, "link", "set", "eth0", "up")
		w.hub.IP(tb, "link", "set", name, "master", "br0", "up")
		w.nodes = append(w.nodes, n)
	}
	return w
}

// listen listens on an address of the hub.
func (w *network) listen(address string) (l net.Listener, err error) {
	enterErr := w.hub.Enter(func() error {
		l, err = net.Listen("tcp", address)
		return nil
	})
	if enterErr != nil {
		return nil, enterErr
	}
	return l, err
}

// start starts a process in a namespace.
func start(n netns.Namespace, cmd *exec.Cmd) error { return n.Enter(cmd.Start) }

// drop makes the packets of a node to an address vanish: it sends them to nobody.
func (w *network) drop(node int, address string) error {
	return w.ip(node, "neigh", "replace", address, "lladdr", nobody, "dev", "eth0", "nud", "permanent")
}

// undrop undoes drop.
func (w *network) undrop(node int, address string) error {
	return w.ip(node, "neigh", "del", address, "dev", "eth0")
}

// refuse makes connections of a node to an address fail at once.
func (w *network) refuse(node int, address string) error {
	return w.ip(node, "route", "add", "unreachable", address+"/32")
}

// unrefuse undoes refuse.
func (w *network) unrefuse(node int, address string) error {
	return w.ip(node, "route", "del", "unreachable", address+"/32")
}

func (w *network) ip(node int, args ...string) error {
	args = append([]string{"-n", string(w.nodes[node])}, args...)
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %v: %w: %s", args, err, out)
	}
	return nil
}
