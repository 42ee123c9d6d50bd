package fetch

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
)

// hostError refuses a host that only this machine or its link can mean: an image
// from there would be another on every node, and a door to what listens there.
type hostError struct{ host, kind string }

func (e *hostError) Error() string {
	return fmt.Sprintf("host %s is a %s address: refused unless allowLoopbackSources is set", e.host, e.kind)
}

// checkHost judges a host as an address spells it; names that have to be
// resolved are judged when they are dialled.
func checkHost(host string) error {
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return &hostError{host, "loopback"}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return checkIP(host, ip)
}

func checkIP(host string, ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback():
		return &hostError{host, "loopback"}
	case ip.IsUnspecified():
		return &hostError{host, "unspecified"}
	case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(), ip.IsInterfaceLocalMulticast():
		return &hostError{host, "link-local"}
	}
	return nil
}

// refuseDial is the Control of a net.Dialer: it sees the address that a name was
// resolved to, so that no name service can lead us where no address may.
func refuseDial(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	return checkIP(ap.Addr().String(), ap.Addr())
}
