package fetch

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/fetch/host"
)

// hostError is the error for a host that is no place for images.
type hostError struct {
	host string
	kind host.Kind
}

// ownAddress is the kind of an address of this machine. Services may trust requests that come from their
// own machine. A configuration with such an address is valid, because the address is usual on other nodes.
const ownAddress host.Kind = "an address of this machine"

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
	kind, own := host.OfAddress(ip), ownAddresses()
	isOwn := func(ip netip.Addr) bool { return slices.Contains(own, ip.Unmap().WithZone("")) }
	if kind == "" && slices.ContainsFunc(append(host.Embedded(ip), ip), isOwn) {
		kind = ownAddress
	}
	if kind != "" {
		return &hostError{name, kind}
	}
	return nil
}

// ownAddresses returns the addresses of the network interfaces. They are read for each connection, because
// they change. If they cannot be read, there are none: a download does not fail for that.
func ownAddresses() []netip.Addr {
	networks, _ := net.InterfaceAddrs()
	var own []netip.Addr
	for _, n := range networks {
		if p, err := netip.ParsePrefix(n.String()); err == nil {
			own = append(own, p.Addr().Unmap().WithZone(""))
		}
	}
	return own
}
