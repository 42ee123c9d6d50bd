package main

import (
	"errors"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type secretValuer struct{}

func (secretValuer) LogValue() slog.Value { return slog.StringValue("https://u:SECRET@valuer/x") }

// No secret in an address may reach stderr or the log file, in whichever way slog receives the
// address.
func TestLogHidesSecrets(t *testing.T) {
	const address = "https://user:SECRET@example.com/a.raw?sig=SECRET"
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	stderr, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	log, done, err := (&logOptions{file: filepath.Join(dir, "log")}).open(stderr)
	if err != nil {
		t.Fatal(err)
	}
	log = log.With("with", address).WithGroup("group").With("in", errors.New("in "+address))
	log.Info("message "+address, "text", address, "error", &url.Error{Op: "Get", URL: address, Err: errors.New("x")},
		"any", u, "list", []string{address}, "struct", struct{ Address string }{address},
		slog.Group("inner", "text", address, slog.Group("deep", "any", any(u))), "valuer", secretValuer{}, "n", 7)
	if err := done(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"stderr", "log"} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		got := string(data)
		if strings.Contains(got, "SECRET") || strings.Contains(got, "user") {
			t.Errorf("%s contains a secret: %s", name, got)
		}
		if n := strings.Count(got, "https://example.com/a.raw"); n != 10 {
			t.Errorf("%s has the address %d times, want 10: %s", name, n, got)
		}
		if !strings.Contains(got, `"n":7`) || !strings.HasPrefix(got, "{") {
			t.Errorf("%s is not JSON with its numbers: %s", name, got)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "log")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log file is %v (error %v), want mode 0600", info.Mode(), err)
	}
}

func TestLogHasTheChosenFormat(t *testing.T) {
	for format, want := range map[logFormat]string{autoLog: `{"time":`, jsonLog: `{"time":`, textLog: "time="} {
		name := filepath.Join(t.TempDir(), "stderr")
		stderr, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer stderr.Close()
		log, _, err := (&logOptions{format: format}).open(stderr)
		if err != nil {
			t.Fatal(err)
		}
		log.Info("x")
		if got, _ := os.ReadFile(name); !strings.HasPrefix(string(got), want) {
			t.Errorf("format %q writes %q, want %q first", format, got, want)
		}
	}
}
