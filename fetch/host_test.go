package fetch

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/host"
)

func TestSpecialAddressesAreRefused(t *testing.T) {
	for _, address := range []string{"127.0.0.1", "::ffff:127.0.0.1", "fe80::1%lo", "100.100.100.200", "64:ff9b::169.254.169.254"} {
		var refused *hostError
		if err := checkHost(address); !errors.As(err, &refused) {
			t.Errorf("check %s: %v", address, err)
		}
		if err := checkDial("tcp", net.JoinHostPort(address, "80"), nil); !errors.As(err, &refused) {
			t.Errorf("dial %s: %v", address, err)
		}
	}
	for _, address := range []string{"192.0.2.1", "2001:db8::1"} {
		if err := errors.Join(checkHost(address), checkDial("tcp", net.JoinHostPort(address, "80"), nil)); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestAddressesOfThisMachineAreRefused: also where the process may not list them.
func TestAddressesOfThisMachineAreRefused(t *testing.T) {
	networks, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	unlisted := func() ([]net.Addr, error) { return nil, syscall.EAFNOSUPPORT }
	for _, other := range []string{"192.0.2.1", "2001:db8::1"} {
		if kind := ownKind(netip.MustParseAddr(other), unlisted); kind != "" {
			t.Errorf("%s: %s", other, kind)
		}
	}
	found := 0
	for _, n := range networks {
		own := netip.MustParsePrefix(n.String()).Addr()
		if kind := ownKind(own, unlisted); kind != bindableAddress && !own.IsLinkLocalUnicast() {
			t.Errorf("%s: %q", own, kind)
		}
		if host.OfAddress(own) != "" {
			continue // loopback and link-local
		}
		found++
		for _, address := range []netip.Addr{own, netip.AddrFrom16(own.As16())} {
			var refused *hostError
			if err := checkIP(address.String(), address); !errors.As(err, &refused) || refused.kind != ownAddress {
				t.Errorf("%s: %v", address, err)
			}
		}
		if host.Of(own.String()) == host.Loopback {
			t.Errorf("%s counts as loopback: credentials would be sent to it unencrypted", own)
		}
	}
	if found == 0 {
		t.Skip("this machine has only loopback and link-local addresses")
	}
}
