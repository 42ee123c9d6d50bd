package fetch

import (
	"errors"
	"net"
	"net/netip"
	"testing"
)

func TestSpecialAddressesAreRefused(t *testing.T) {
	for address, want := range map[string]hostKind{
		"127.0.0.1": loopback, "127.255.255.254": loopback, "::1": loopback, "::ffff:127.0.0.1": loopback,
		"0.0.0.0": unspecified, "0.1.2.3": unspecified, "::": unspecified, "::ffff:0.0.0.0": unspecified,
		"169.254.169.254": linkLocal, "fe80::1": linkLocal, "fe80::1%lo": linkLocal, "ff02::1": linkLocal, "224.0.0.1": linkLocal,
		"239.1.2.3": group, "ff0e::1": group, "255.255.255.255": group,
		"fd00:ec2::254": metadata, "fd00:ec2::254%eth0": metadata, "fd00:ec2:ffff::1": metadata, "fd20:ce::254": metadata,
		"168.63.129.16": metadata, "100.100.100.200": metadata, "::ffff:168.63.129.16": metadata,

		// NAT64, also with a prefix of the operator of 96, 64, 56 or 48 bits.
		"64:ff9b::127.0.0.1": loopback, "64:ff9b::169.254.169.254": linkLocal, "64:ff9b::100.100.100.200": metadata, "64:ff9b::0.0.0.0": unspecified,
		"64:ff9b:1::127.0.0.1": loopback, "64:ff9b:1:fffe::169.254.169.254": linkLocal, "64:ff9b:1:fffe:1::7f00:1": loopback,
		"64:ff9b:1:abcd:a9:fea9:fe00:0": linkLocal, "64:ff9b:1:aba9:fe:a9fe::": linkLocal, "64:ff9b:1:a9fe:a9:fe00::": linkLocal,
		"64:ff9b:1:0:7f:0:100:0": loopback,
		// 6to4, Teredo (server and client), IPv4-compatible, IPv4-translated.
		"2002:7f00:1::": loopback, "2002:a9fe:a9fe::1": linkLocal,
		"2001:0:7f00:1::": loopback, "2001:0:c000:201:0:0:80ff:fffe": loopback, "2001:0:c000:201:0:0:5601:5601": linkLocal,
		"::127.0.0.1": loopback, "::169.254.169.254": linkLocal, "::ffff:0:127.0.0.1": loopback,

		// Addresses that may have images.
		"10.0.0.1": "", "192.0.2.1": "", "100.64.0.1": "", "168.63.129.17": "", "1.0.0.0": "",
		"2001:db8::1": "", "fd00::1": "", "fd00:ec3::1": "",
		"64:ff9b::192.0.2.1": "", "64:ff9b:1::192.0.2.1": "", "64:ff9b:1:fffe:c0:2:100:0": "", "64:ff9b:1:0:c0:2:100:0": "",
		"2002:c000:201::1": "", "2001:0:c000:201:0:0:3fff:fdfe": "", "::192.0.2.1": "",
	} {
		var got hostKind
		err := checkIP(address, netip.MustParseAddr(address))
		var refused *hostError
		if errors.As(err, &refused) {
			got = refused.kind
		}
		if got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
		if dialed := checkDial("tcp", net.JoinHostPort(address, "80"), nil); (dialed == nil) != (want == "") {
			t.Errorf("dial %s: %v", address, dialed)
		}
	}
}

func TestAddressesOfThisMachineAreRefused(t *testing.T) {
	found := 0
	for _, own := range ownAddresses() {
		if kindOf(own) != "" {
			continue // loopback and link-local
		}
		found++
		for _, address := range []netip.Addr{own, netip.AddrFrom16(own.As16())} {
			var refused *hostError
			if err := checkIP(address.String(), address); !errors.As(err, &refused) || refused.kind != ownAddress {
				t.Errorf("%s: %v", address, err)
			}
		}
		if isLoopback(own.String()) {
			t.Errorf("%s counts as loopback: credentials would be sent to it unencrypted", own)
		}
	}
	if found == 0 {
		t.Skip("this machine has only loopback and link-local addresses")
	}
}
