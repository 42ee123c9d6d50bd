package fetch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/fetch/host"
)

// hostError means that images may not be read from a host.
type hostError struct {
	host string
	kind host.Kind
}

// ownAddress is the kind of an address of this machine: services may trust requests from their own
// machine. It is refused only when it is dialed, because the same configuration is right on other nodes.
const (
	ownAddress      host.Kind = "an address of this machine"
	bindableAddress host.Kind = "an address that this machine can bind (its addresses cannot be listed: allow AF_NETLINK)"
)

func (e *hostError) Error() string {
	return fmt.Sprintf("host %s is %s: refused unless allowLoopbackSources is set", e.host, e.kind)
}

// checkHost checks a host name or address. It does not resolve names; checkDial checks the resolved
// addresses.
func checkHost(name string) error {
	if ip, err := netip.ParseAddr(name); err == nil {
		return checkIP(name, ip)
	}
	if kind := host.Of(name); kind != "" {
		return &hostError{name, kind}
	}
	return nil
}

// checkDial is the Control function of a net.Dialer. It receives the resolved address, so that a name
// cannot be resolved to a host that is not allowed.
func checkDial(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	return checkIP(ap.Addr().String(), ap.Addr())
}

// checkIP checks an address, and the IPv4 addresses to which a gateway would translate it.
func checkIP(name string, ip netip.Addr) error {
	kind := host.OfAddress(ip)
	for _, ip := range append(host.Embedded(ip), ip) {
		if kind == "" {
			kind = ownKind(ip.Unmap().WithZone(""), net.InterfaceAddrs)
		}
	}
	if kind != "" {
		return &hostError{name, kind}
	}
	return nil
}

// ownKind returns the kind of an address of this machine, and "" for all other addresses. It calls list() for
// each connection, because the addresses of the network interfaces change. If list fails, as in a systemd unit
// without AF_NETLINK, only an address that certainly cannot be bound is no address of this machine.
func ownKind(ip netip.Addr, list func() ([]net.Addr, error)) host.Kind {
	networks, err := list()
	if err != nil {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(ip, 0)))
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			return ""
		}
		if err == nil {
			c.Close()
		}
		return bindableAddress
	}
	for _, n := range networks {
		if p, err := netip.ParsePrefix(n.String()); err == nil && p.Addr().Unmap().WithZone("") == ip {
			return ownAddress
		}
	}
	return ""
}
