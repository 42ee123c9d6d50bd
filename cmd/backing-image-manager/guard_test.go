package main

import (
	"net/http/httptest"
	"testing"
)

func TestGuardRefuses(t *testing.T) {
	alone, err := newGuard("127.0.0.7:8000", "", false)
	if err != nil {
		t.Fatal(err)
	}
	locked, err := newGuard("0.0.0.0:8000", "open sesame", false)
	if err != nil {
		t.Fatal(err)
	}
	open, err := newGuard(":8000", "", true)
	if err != nil {
		t.Fatal(err)
	}
	const here, there = "127.0.0.1:5", "10.1.2.3:5"
	for _, tt := range []struct {
		name, path, from, host string
		guard                  guard
		header                 []string
		want                   int
	}{
		{"local", "/v1/status", here, "localhost:8000", alone, nil, 0},
		{"local by number", "/v1/status", here, "127.0.0.7:8000", alone, nil, 0},
		{"local by IPv6", "/v1/status", "[::1]:5", "[::1]:8000", alone, nil, 0},
		{"local without a port", "/v1/status", here, "LOCALHOST", alone, nil, 0},
		{"rebound name", "/v1/status", here, "evil.example:8000", alone, nil, 403},
		{"name that looks local", "/v1/status", here, "localhost.evil.example", alone, nil, 403},
		{"number that looks local", "/v1/status", here, "127.0.0.1.evil.example", alone, nil, 403},
		{"no host", "/v1/status", here, "", alone, nil, 403},
		{"web page", "/v1/status", here, "localhost:8000", alone, []string{"Origin", "http://localhost:8000"}, 403},
		{"web page without an address", "/metrics", here, "localhost:8000", alone, []string{"Origin", "null"}, 403},
		{"other machine", "/v1/status", there, "localhost:8000", alone, nil, 403},
		{"other machine asks for health", "/healthz", there, "evil.example", alone, nil, 0},
		{"path that looks like health", "/v1/../healthz", there, "localhost", alone, nil, 403},

		{"token", "/v1/status", there, "node1:8000", locked, []string{"Authorization", "Bearer open sesame"}, 0},
		{"no token", "/metrics", here, "localhost:8000", locked, nil, 401},
		{"other token", "/v1/status", here, "localhost:8000", locked, []string{"Authorization", "Bearer open"}, 401},
		{"longer token", "/v1/status", here, "localhost:8000", locked, []string{"Authorization", "Bearer open sesame!"}, 401},
		{"empty token", "/v1/status", here, "localhost:8000", locked, []string{"Authorization", "Bearer "}, 401},
		{"other scheme", "/v1/status", here, "localhost:8000", locked, []string{"Authorization", "open sesame"}, 401},
		{"health without a token", "/healthz", there, "node1:8000", locked, nil, 0},

		{"insecure", "/v1/status", there, "node1:8000", open, nil, 0},
		{"insecure for a web page", "/v1/status", there, "node1:8000", open, []string{"Origin", "http://evil.example"}, 403},
	} {
		r := httptest.NewRequest("GET", "http://x"+tt.path, nil)
		r.URL.Path, r.RemoteAddr, r.Host = tt.path, tt.from, tt.host
		for i := 0; i < len(tt.header); i += 2 {
			r.Header.Set(tt.header[i], tt.header[i+1])
		}
		if got, why := tt.guard.refuse(r); got != tt.want {
			t.Errorf("%s: got %d (%s), want %d", tt.name, got, why, tt.want)
		}
	}
}

func TestNewGuard(t *testing.T) {
	for listen, want := range map[string]bool{
		"127.0.0.1:8000": true, "127.9.8.7:0": true, "localhost:1": true, "[::1]:8000": true,
		":8000": false, "0.0.0.0:8000": false, "[::]:8000": false, "10.0.0.1:8000": false, "node1:8000": false,
		"127.0.0.1": false, "8000": false,
	} {
		if _, err := newGuard(listen, "", false); (err == nil) != want {
			t.Errorf("%s without a token: %v", listen, err)
		}
	}
}
