package fetch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
)

// hostError is the error for a host that is no place for images: it has a different meaning on each
// node, so that the image would differ between nodes, or it is a service that only a node can reach,
// such as the metadata service of a cloud, which has credentials of the node.
type hostError struct {
	host string
	kind hostKind
}

// hostKind is the kind of a rejected host, as its error names it.
type hostKind string

const (
	loopback    hostKind = "a loopback address"
	unspecified hostKind = "an unspecified address"
	linkLocal   hostKind = "a link-local address"
	group       hostKind = "a multicast or broadcast address"
	metadata    hostKind = "an address of a cloud's metadata service"
	ownAddress  hostKind = "an address of this machine"
)

func (e *hostError) Error() string {
	return fmt.Sprintf("host %s is %s: refused unless allowLoopbackSources is set", e.host, e.kind)
}

// checkHost checks a host name or address. It does not resolve names; checkDial checks the resolved
// addresses.
func checkHost(host string) error {
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return &hostError{host, loopback}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return checkIP(host, ip)
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

// isLoopback reports whether a host name or address is loopback. It does not resolve names.
func isLoopback(host string) bool {
	var refused *hostError
	return errors.As(checkHost(host), &refused) && refused.kind == loopback
}

// checkIP checks an address, and the IPv4 addresses to which a gateway would translate it.
func checkIP(host string, ip netip.Addr) error {
	own := ownAddresses()
	for _, ip := range append(embedded(ip), ip) {
		kind := kindOf(ip)
		if kind == "" && slices.Contains(own, ip.Unmap().WithZone("")) {
			kind = ownAddress
		}
		if kind != "" {
			return &hostError{host, kind}
		}
	}
	return nil
}

// metadataServices are the addresses of metadata services that are not link-local.
var metadataServices = []netip.Prefix{
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS
	netip.MustParsePrefix("fd20:ce::/32"),       // Google
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
}

var (
	thisNetwork = netip.MustParsePrefix("0.0.0.0/8") // Linux connects to 0.0.0.0 as to loopback
	broadcast   = netip.MustParseAddr("255.255.255.255")
)

// kindOf returns the kind of an address that is rejected, or "".
func kindOf(ip netip.Addr) hostKind {
	ip = ip.Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return loopback
	case ip.IsUnspecified(), thisNetwork.Contains(ip):
		return unspecified
	case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(), ip.IsInterfaceLocalMulticast():
		return linkLocal
	case ip.IsMulticast(), ip == broadcast:
		return group
	case slices.ContainsFunc(metadataServices, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return metadata
	}
	return ""
}

// The prefixes of IPv6 addresses that contain an IPv4 address, to which a gateway translates them.
var (
	compatible = netip.MustParsePrefix("::/96")           // RFC 4291, deprecated
	translated = netip.MustParsePrefix("::ffff:0:0:0/96") // RFC 2765
	nat64      = netip.MustParsePrefix("64:ff9b::/96")    // RFC 6052
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")  // RFC 8215
	sixToFour  = netip.MustParsePrefix("2002::/16")       // RFC 3056
	teredo     = netip.MustParsePrefix("2001::/32")       // RFC 4380
)

// embedded returns the IPv4 addresses in an IPv6 address. An operator chooses where a NAT64 prefix of
// its own has the IPv4 address, so every possible place counts.
func embedded(ip netip.Addr) []netip.Addr {
	ip = ip.Unmap().WithZone("")
	if ip.Is4() || ip.IsUnspecified() || ip.IsLoopback() {
		return nil
	}
	b := ip.As16()
	last := netip.AddrFrom4([4]byte(b[12:]))
	switch {
	case compatible.Contains(ip), translated.Contains(ip), nat64.Contains(ip):
		return []netip.Addr{last}
	case localNAT64.Contains(ip):
		if b[8] != 0 || b[13]|b[14]|b[15] != 0 { // these bytes are zero if the prefix is shorter than 96 bits
			return []netip.Addr{last}
		}
		possible := []netip.Addr{
			netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}),  // 48 bits; byte 8 is always zero
			netip.AddrFrom4([4]byte{b[7], b[9], b[10], b[11]}), // 56 bits
			netip.AddrFrom4([4]byte(b[9:13])),                  // 64 bits
		}
		return slices.DeleteFunc(possible, thisNetwork.Contains) // no gateway translates to it, so it is another place
	case sixToFour.Contains(ip):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[2:6]))}
	case teredo.Contains(ip): // the server, and the client with its bits inverted
		return []netip.Addr{netip.AddrFrom4([4]byte(b[4:8])), netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})}
	}
	return nil
}

// ownAddresses returns the addresses of the network interfaces. Services may trust requests that come
// from their own machine. The addresses are read for each connection, because they change. If they
// cannot be read, there are none: a download does not fail for that.
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
