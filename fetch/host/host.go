// Package host recognises hosts that must not be sources of images. Some are another machine for each node,
// such as localhost: the image would differ between nodes. Others are services that only a node can reach,
// such as the metadata service of a cloud, which has credentials of the node.
//
// A download rejects these hosts, and so does the validation of a configuration.
package host

import (
	"net/netip"
	"slices"
	"strings"
)

// Kind is the kind of a rejected host, as messages name it; "" for all other hosts.
type Kind string

// The kinds of rejected hosts.
const (
	Loopback    Kind = "a loopback address"
	Unspecified Kind = "an unspecified address"
	LinkLocal   Kind = "a link-local address"
	Group       Kind = "a multicast or broadcast address"
	Metadata    Kind = "an address of a cloud's metadata service"
)

// Of returns the kind of a host name or address. It does not resolve names.
func Of(host string) Kind {
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return Loopback
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return ""
	}
	return OfAddress(ip)
}

// OfAddress returns the kind of an address. An IPv6 address that a gateway translates has the kind of the
// IPv4 address.
func OfAddress(ip netip.Addr) Kind {
	for _, ip := range append(Embedded(ip), ip) {
		if kind := kindOf(ip); kind != "" {
			return kind
		}
	}
	return ""
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

// kindOf is OfAddress without the embedded addresses.
func kindOf(ip netip.Addr) Kind {
	ip = ip.Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return Loopback
	case ip.IsUnspecified(), thisNetwork.Contains(ip):
		return Unspecified
	case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(), ip.IsInterfaceLocalMulticast():
		return LinkLocal
	case ip.IsMulticast(), ip == broadcast:
		return Group
	case slices.ContainsFunc(metadataServices, func(p netip.Prefix) bool { return p.Contains(ip) }):
		return Metadata
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

// Embedded returns the IPv4 addresses in an IPv6 address. The operator of a network chooses where its own
// NAT64 prefix has the IPv4 address, so every possible place counts.
func Embedded(ip netip.Addr) []netip.Addr {
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
		return slices.DeleteFunc(possible, thisNetwork.Contains) // no gateway translates to this network, so another place is right
	case sixToFour.Contains(ip):
		return []netip.Addr{netip.AddrFrom4([4]byte(b[2:6]))}
	case teredo.Contains(ip): // the server, and the client with its bits inverted
		return []netip.Addr{netip.AddrFrom4([4]byte(b[4:8])), netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})}
	}
	return nil
}
