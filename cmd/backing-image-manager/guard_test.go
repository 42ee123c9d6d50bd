package main

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func putTokens(t *testing.T, text string) *reloaded[tokens] {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens, err := newTokens(slog.New(slog.DiscardHandler), file)
	if err != nil {
		t.Fatal(err)
	}
	return tokens
}

func guarding(t *testing.T, listen string, g guard) guard {
	t.Helper()
	g, err := g.listeningOn(listen)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGuardAdmits(t *testing.T) {
	alone := guarding(t, "127.0.0.7:8000", guard{})
	locked := guarding(t, "0.0.0.0:8000", guard{tokens: putTokens(t, "open-sesame\n")})
	roles := guarding(t, "0.0.0.0:8000", guard{tokens: putTokens(t, "peer reads\n\nadmin does\npeer read-too\n")})
	open := guarding(t, ":8000", guard{insecure: true})
	const here, there = "127.0.0.1:5", "10.1.2.3:5"
	for _, tt := range []struct {
		name, from, host string
		guard            guard
		header           []string
		role             role
		status           int
	}{
		{"local", here, "localhost:8000", alone, nil, adminRole, 0},
		{"local by number", here, "127.0.0.7:8000", alone, nil, adminRole, 0},
		{"local by IPv6", "[::1]:5", "[::1]:8000", alone, nil, adminRole, 0},
		{"local without a port", here, "LOCALHOST", alone, nil, adminRole, 0},
		{"rebound name", here, "evil.example:8000", alone, nil, nobody, 403},
		{"name that looks local", here, "localhost.evil.example", alone, nil, nobody, 403},
		{"number that looks local", here, "127.0.0.1.evil.example", alone, nil, nobody, 403},
		{"no host", here, "", alone, nil, nobody, 403},
		{"web page", here, "localhost:8000", alone, []string{"Origin", "http://localhost:8000"}, nobody, 403},
		{"web page without an address", here, "localhost:8000", alone, []string{"Origin", "null"}, nobody, 403},
		{"other machine", there, "localhost:8000", alone, nil, nobody, 403},
		{"a token that nobody asks for", there, "localhost:8000", alone, []string{"Authorization", "Bearer x"}, nobody, 403},

		{"token", there, "node1:8000", locked, []string{"Authorization", "Bearer open-sesame"}, adminRole, 0},
		{"no token", here, "localhost:8000", locked, nil, nobody, 401},
		{"other token", here, "localhost:8000", locked, []string{"Authorization", "Bearer open"}, nobody, 401},
		{"longer token", here, "localhost:8000", locked, []string{"Authorization", "Bearer open-sesame!"}, nobody, 401},
		{"empty token", here, "localhost:8000", locked, []string{"Authorization", "Bearer "}, nobody, 401},
		{"other scheme", here, "localhost:8000", locked, []string{"Authorization", "open-sesame"}, nobody, 401},
		{"token of a web page", there, "node1:8000", locked, []string{"Authorization", "Bearer open-sesame", "Origin", "http://ui.example"}, adminRole, 0},

		{"peer", there, "node1:8000", roles, []string{"Authorization", "Bearer reads"}, peerRole, 0},
		{"second peer", there, "node1:8000", roles, []string{"Authorization", "Bearer read-too"}, peerRole, 0},
		{"admin", there, "node1:8000", roles, []string{"Authorization", "Bearer does"}, adminRole, 0},
		{"line of the file", there, "node1:8000", roles, []string{"Authorization", "Bearer admin does"}, nobody, 401},

		{"insecure", there, "node1:8000", open, nil, adminRole, 0},
		{"insecure for a web page", there, "node1:8000", open, []string{"Origin", "http://evil.example"}, nobody, 403},
	} {
		r := httptest.NewRequest("GET", "http://x/v1/status", nil)
		r.RemoteAddr, r.Host = tt.from, tt.host
		for i := 0; i < len(tt.header); i += 2 {
			r.Header.Set(tt.header[i], tt.header[i+1])
		}
		status := 0
		got, no := tt.guard.admit(r)
		if no != nil {
			status = no.status
		}
		if got != tt.role || status != tt.status {
			t.Errorf("%s: got %v (%+v), want %v, %d", tt.name, got, no, tt.role, tt.status)
		}
	}
}

func TestGuardListens(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:8000": true, "127.9.8.7:0": true, "localhost:1": true, "[::1]:8000": true,
		":8000": false, "0.0.0.0:8000": false, "[::]:8000": false, "10.0.0.1:8000": false, "node1:8000": false,
		"127.0.0.1": false, "8000": false,
	} {
		if _, err := (guard{}).listeningOn(listen); (err == nil) != want {
			t.Errorf("%s without a token: %v", listen, err)
		}
	}
}

func TestTokens(t *testing.T) {
	const shape = `write one token, or lines of "peer TOKEN" and "admin TOKEN"`
	for _, tt := range []struct{ text, strongest, weakest, err string }{
		{"open-sesame\n", "open-sesame", "open-sesame", ""},
		{"\n  open-sesame  \r\n\n", "open-sesame", "open-sesame", ""},
		{"peer a\npeer b\nadmin c\nadmin d", "c", "a", ""},
		{"admin c", "c", "c", ""},
		{"peer a", "a", "a", ""},
		{"", "", "", "it is empty: " + shape},
		{" \n\n", "", "", "it is empty: " + shape},
		{"operator a", "", "", "line 1: " + shape},
		{"peer a\nadmin b c", "", "", "line 2: " + shape},
		{"one\ntwo", "", "", `a token without a role has to be the only line: write "peer TOKEN" or "admin TOKEN"`},
		{"peer a\nb", "", "", `a token without a role has to be the only line: write "peer TOKEN" or "admin TOKEN"`},
		{"peer \n", "", "", "line 1: there is no token behind the role"},
		{"admin", "", "", "line 1: there is no token behind the role"},
		{"peer a\nadmin", "", "", "line 2: there is no token behind the role"},
		{"pässword", "", "", "line 1: a token is made of letters, digits and signs of ASCII"},
		{"a\x00b", "", "", "line 1: a token is made of letters, digits and signs of ASCII"},
	} {
		got, err := parseTokens(tt.text)
		switch {
		case tt.err != "":
			if err == nil || err.Error() != tt.err {
				t.Errorf("%q: error %v, want %s", tt.text, err, tt.err)
			}
		case err != nil:
			t.Errorf("%q: %v", tt.text, err)
		case got.strongest() != tt.strongest || got.weakest() != tt.weakest:
			t.Errorf("%q: sends %s and %s, want %s and %s", tt.text, got.strongest(), got.weakest(), tt.strongest, tt.weakest)
		}
	}
}

func TestTokenFileIsAFolder(t *testing.T) {
	dir := t.TempDir()
	_, err := newTokens(slog.New(slog.DiscardHandler), dir)
	if want := "read token: " + dir + " is a folder: name the file in it"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestTokenErrorsTellNoToken(t *testing.T) {
	for _, text := range []string{"SECRET SECRET SECRET", "operator SECRET", "SECRET\nSECRET", "SECRET\x01"} {
		if _, err := parseTokens(text); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: error %v", text, err)
		}
	}
}
