package host

import "testing"

func TestKindOfHost(t *testing.T) {
	for address, want := range map[string]Kind{
		"127.0.0.1": Loopback, "127.255.255.254": Loopback, "::1": Loopback, "::ffff:127.0.0.1": Loopback,
		"0.0.0.0": Unspecified, "0.1.2.3": Unspecified, "::": Unspecified, "::ffff:0.0.0.0": Unspecified,
		"169.254.169.254": LinkLocal, "fe80::1": LinkLocal, "fe80::1%lo": LinkLocal, "ff02::1": LinkLocal, "224.0.0.1": LinkLocal,
		"239.1.2.3": Group, "ff0e::1": Group, "255.255.255.255": Group,
		"fd00:ec2::254": Metadata, "fd00:ec2::254%eth0": Metadata, "fd00:ec2:ffff::1": Metadata, "fd20:ce::254": Metadata,
		"168.63.129.16": Metadata, "100.100.100.200": Metadata, "::ffff:168.63.129.16": Metadata,

		// NAT64, also with a prefix of the operator of 96, 64, 56 or 48 bits.
		"64:ff9b::127.0.0.1": Loopback, "64:ff9b::169.254.169.254": LinkLocal, "64:ff9b::100.100.100.200": Metadata, "64:ff9b::0.0.0.0": Unspecified,
		"64:ff9b:1::127.0.0.1": Loopback, "64:ff9b:1:fffe::169.254.169.254": LinkLocal, "64:ff9b:1:fffe:1::7f00:1": Loopback,
		"64:ff9b:1:abcd:a9:fea9:fe00:0": LinkLocal, "64:ff9b:1:aba9:fe:a9fe::": LinkLocal, "64:ff9b:1:a9fe:a9:fe00::": LinkLocal,
		"64:ff9b:1:0:7f:0:100:0": Loopback,
		// 6to4, Teredo (server and client), IPv4-compatible, IPv4-translated.
		"2002:7f00:1::": Loopback, "2002:a9fe:a9fe::1": LinkLocal,
		"2001:0:7f00:1::": Loopback, "2001:0:c000:201:0:0:80ff:fffe": Loopback, "2001:0:c000:201:0:0:5601:5601": LinkLocal,
		"::127.0.0.1": Loopback, "::169.254.169.254": LinkLocal, "::ffff:0:127.0.0.1": Loopback,

		"localhost": Loopback, "LocalHost.": Loopback, "a.localhost": Loopback, "127.0.0.1.": Loopback,

		// Hosts that may have images.
		"example.com": "", "localhost.example.com": "", "": "",
		"10.0.0.1": "", "192.0.2.1": "", "100.64.0.1": "", "168.63.129.17": "", "1.0.0.0": "",
		"2001:db8::1": "", "fd00::1": "", "fd00:ec3::1": "",
		"64:ff9b::192.0.2.1": "", "64:ff9b:1::192.0.2.1": "", "64:ff9b:1:fffe:c0:2:100:0": "", "64:ff9b:1:0:c0:2:100:0": "",
		"2002:c000:201::1": "", "2001:0:c000:201:0:0:3fff:fdfe": "", "::192.0.2.1": "",
	} {
		if got := Of(address); got != want {
			t.Errorf("%s: %q, want %q", address, got, want)
		}
	}
}
