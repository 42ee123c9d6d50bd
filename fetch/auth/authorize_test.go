package auth

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

func loadTokenText(t *testing.T, text string) Credentials {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(slog.New(slog.DiscardHandler), file, TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newAuthorizer(t *testing.T, c Credentials, address string, insecure bool) *Authorizer {
	t.Helper()
	a, err := NewAuthorizer(c, address, insecure)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthorizeGivesTheRoleOfTheCaller(t *testing.T) {
	local := newAuthorizer(t, Credentials{}, "127.0.0.7:8000", false)
	oneToken := newAuthorizer(t, loadTokenText(t, "open-sesame-0123\n"), "0.0.0.0:8000", false)
	roles := newAuthorizer(t, loadTokenText(t, "peer reads-0123456789\n\nadmin does-01234567890\npeer read-too-0123456789\n"), "0.0.0.0:8000", false)
	insecure := newAuthorizer(t, Credentials{}, ":8000", true)
	const here, there = "127.0.0.1:5", "10.1.2.3:5"
	for _, tt := range []struct {
		name, from, host string
		authorizer       *Authorizer
		header           []string
		role             Role
		status           int
	}{
		{"local", here, "localhost:8000", local, nil, RoleAdmin, 0},
		{"local by number", here, "127.0.0.7:8000", local, nil, RoleAdmin, 0},
		{"local by IPv6", "[::1]:5", "[::1]:8000", local, nil, RoleAdmin, 0},
		{"local without a port", here, "LOCALHOST", local, nil, RoleAdmin, 0},
		{"rebound name", here, "evil.example:8000", local, nil, RoleNone, 403},
		{"name that looks local", here, "localhost.evil.example", local, nil, RoleNone, 403},
		{"number that looks local", here, "127.0.0.1.evil.example", local, nil, RoleNone, 403},
		{"no host", here, "", local, nil, RoleNone, 403},
		{"own web page", here, "localhost:8000", local, []string{"Origin", "http://localhost:8000"}, RoleAdmin, 0},
		{"web page of another program", here, "localhost:8000", local, []string{"Origin", "http://localhost:3000"}, RoleNone, 403},
		{"web page without an address", here, "localhost:8000", local, []string{"Origin", "null"}, RoleNone, 403},
		{"other machine", there, "localhost:8000", local, nil, RoleNone, 403},
		{"token that is not required", there, "localhost:8000", local, []string{"Authorization", "Bearer x"}, RoleNone, 403},

		{"token", there, "node1:8000", oneToken, []string{"Authorization", "Bearer open-sesame-0123"}, RoleAdmin, 0},
		{"no token", here, "localhost:8000", oneToken, nil, RoleNone, 401},
		{"other token", here, "localhost:8000", oneToken, []string{"Authorization", "Bearer open"}, RoleNone, 401},
		{"longer token", here, "localhost:8000", oneToken, []string{"Authorization", "Bearer open-sesame-0123!"}, RoleNone, 401},
		{"empty token", here, "localhost:8000", oneToken, []string{"Authorization", "Bearer "}, RoleNone, 401},
		{"other scheme", here, "localhost:8000", oneToken, []string{"Authorization", "open-sesame-0123"}, RoleNone, 401},
		{"token of a web page", there, "node1:8000", oneToken, []string{"Authorization", "Bearer open-sesame-0123", "Origin", "http://ui.example"}, RoleAdmin, 0},

		{"peer", there, "node1:8000", roles, []string{"Authorization", "Bearer reads-0123456789"}, RolePeer, 0},
		{"second peer", there, "node1:8000", roles, []string{"Authorization", "Bearer read-too-0123456789"}, RolePeer, 0},
		{"admin", there, "node1:8000", roles, []string{"Authorization", "Bearer does-01234567890"}, RoleAdmin, 0},
		{"line of the file", there, "node1:8000", roles, []string{"Authorization", "Bearer admin does-01234567890"}, RoleNone, 401},

		{"insecure", there, "10.0.0.1:8000", insecure, nil, RoleAdmin, 0},
		{"insecure for a rebound name", there, "evil.example:8000", insecure, nil, RoleNone, 403},
		{"insecure for a web page", there, "10.0.0.1:8000", insecure, []string{"Origin", "http://evil.example"}, RoleNone, 403},
	} {
		r := httptest.NewRequest("GET", "http://x/v1/status", nil)
		r.RemoteAddr, r.Host = tt.from, tt.host
		for i := 0; i < len(tt.header); i += 2 {
			r.Header.Set(tt.header[i], tt.header[i+1])
		}
		status := 0
		got, err := tt.authorizer.Authorize(r, noHost)
		if denied, ok := errors.AsType[*httperror.Error](err); ok {
			status = denied.Status
		}
		if got != tt.role || status != tt.status {
			t.Errorf("%s: got %v (error %v), want %v, %d", tt.name, got, err, tt.role, tt.status)
		}
	}
}

// noHost declares no node.
func noHost(string) bool { return false }

func TestListenOnOtherAddressesNeedsCredentials(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:8000": true, "127.9.8.7:0": true, "localhost:1": true, "[::1]:8000": true,
		":8000": false, "0.0.0.0:8000": false, "[::]:8000": false, "10.0.0.1:8000": false, "node1:8000": false,
		"127.0.0.1": false, "8000": false,
	} {
		if _, err := NewAuthorizer(Credentials{}, address, false); (err == nil) != want {
			t.Errorf("%s without a token: %v", address, err)
		}
	}
}
