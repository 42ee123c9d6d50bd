package auth

import (
	"crypto/x509"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// Whoever empties or removes the token file revokes all tokens, with their sessions. A file that cannot be used for another reason, or
// that is being written, revokes nothing. A new file ends the lockout without a restart.
func TestEmptiedTokenFileRevokesAll(t *testing.T) {
	const valid = "peer " + peerToken + "\nadmin " + adminToken
	writeAfter := func(after time.Duration, text string) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			if err := os.Truncate(file, 0); err != nil {
				t.Fatal(err)
			}
			go func() {
				time.Sleep(after)
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Error(err)
				}
			}()
		}
	}
	write := func(text string) func(*testing.T, string) {
		return func(t *testing.T, file string) {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, tt := range map[string]struct {
		change func(t *testing.T, file string)
		want   Role
	}{
		"emptied":           {write(""), RoleNone},
		"blank":             {write(" \n\n"), RoleNone},
		"removed":           {func(t *testing.T, file string) { os.Remove(file) }, RoleNone},
		"removed by folder": {func(t *testing.T, file string) { os.RemoveAll(filepath.Dir(file)) }, RoleNone},
		"nonsense":          {write("operator " + adminToken), RoleAdmin},
		"cut off":           {write("admin"), RoleAdmin},
		"a folder": {func(t *testing.T, file string) {
			os.Remove(file)
			os.Mkdir(file, 0o700)
		}, RoleAdmin},
		"being written":      {writeAfter(writeTime/2, valid), RoleAdmin},
		"written too slowly": {writeAfter(2*writeTime, valid), RoleNone},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				file := filepath.Join(t.TempDir(), "folder", "token")
				if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				write(valid)(t, file)
				c, err := Load(slog.New(slog.DiscardHandler), file, TLSFiles{})
				if err != nil {
					t.Fatal(err)
				}
				a := newAuthorizer(t, c, ":8000", false)
				cookie := signIn(t, a, adminToken)
				check := func(when string, want Role) {
					t.Helper()
					r := httptest.NewRequest("GET", "http://images.example/", nil)
					r.Header.Set("Authorization", "Bearer "+adminToken)
					if role, err := a.Authorize(r, noHost); role != want {
						t.Errorf("%s, the token has role %v (%v), want %v", when, role, err, want)
					}
					if s, _ := a.Session(send("GET", cookie)); s.Role != want {
						t.Errorf("%s, the session has role %v, want %v", when, s.Role, want)
					}
					for _, none := range []string{"", " "} {
						r.Header.Set("Authorization", "Bearer "+none)
						if role, _ := a.Authorize(r, noHost); role != RoleNone {
							t.Errorf("%s, the token %q has role %v", when, none, role)
						}
					}
					err := a.SignIn(httptest.NewRecorder(), httptest.NewRequest("POST", "/signin", nil), adminToken)
					if (err == nil) != (want == RoleAdmin) || err != nil && statusOf(err) != http.StatusUnauthorized {
						t.Errorf("%s, a sign-in: %v", when, err)
					}
					if token, _ := c.ForPeers(); (token() == peerToken) != (want == RoleAdmin) {
						t.Errorf("%s, peers get the token %q", when, token())
					}
				}
				check("before", RoleAdmin)
				time.Sleep(reloadInterval)
				tt.change(t, file)
				check("after", tt.want)
				time.Sleep(reloadInterval)
				os.RemoveAll(filepath.Dir(file))
				if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				write(valid)(t, file)
				check("after it was written again", RoleAdmin)
			})
		})
	}
}

// Whoever empties or removes the file with the authorities revokes all certificates, also on open connections. Without its own
// certificate, a daemon could not serve: it keeps the last one.
func TestEmptiedAuthoritiesRevokeAll(t *testing.T) {
	for name, tt := range map[string]struct {
		file    string
		content []byte // nil: removed
		revoked bool
	}{
		"emptied": {"ca.crt", []byte{}, true}, "blank": {"ca.crt", []byte("\n"), true}, "removed": {"ca.crt", nil, true},
		"nonsense": {"ca.crt", []byte("nonsense"), false}, "without a certificate": {"server.crt", []byte{}, false}, "without a key": {"server.key", nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := newCertFolder(t)
			server, peer := f.load(t, "server"), f.load(t, "peer")
			state, err := handshake(t, server.identity.current().server, peer.identity.current().client)
			if err != nil || server.identity.current().role(&state, time.Now()) != RolePeer {
				t.Fatalf("%s: before: %v", name, err)
			}
			time.Sleep(reloadInterval)
			if tt.content != nil {
				f.put(t, tt.file, tt.content)
			} else if err := os.Remove(filepath.Join(f.dir, tt.file)); err != nil {
				t.Fatal(err)
			}
			now := server.identity.current()
			if role := now.role(&state, time.Now()); (role == RoleNone) != tt.revoked {
				t.Errorf("%s: the open connection has role %v", name, role)
			}
			if _, err := handshake(t, now.server, peer.identity.value.client); (err != nil) != tt.revoked {
				t.Errorf("%s: a new connection: %v", name, err)
			}
			if _, err := now.server.Certificates[0].Leaf.Verify(x509.VerifyOptions{Roots: now.client.RootCAs}); (err != nil) != tt.revoked {
				t.Errorf("%s: the certificate of a server: %v", name, err)
			}
			f.put(t, "ca.crt", f.authority.PEM())
			f.issue(t, "server", nil)
			time.Sleep(reloadInterval)
			if role := server.identity.current().role(&state, time.Now()); role != RolePeer {
				t.Errorf("%s: after the files were written again: role %v", name, role)
			}
		})
	}
}
