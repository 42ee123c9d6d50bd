package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/rogpeppe/go-internal/testscript"
)

// tusClient is tus-js-client, as testdata/tus wants it. It is there once npm has had it.
var tusClient = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs("../../testdata/tus")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "tus-js-client", "package.json")); err == nil {
		return dir, nil
	}
	install := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir, install.Stdout, install.Stderr = dir, os.Stderr, os.Stderr
	return dir, install.Run()
})

// findTus sets a variable, see script_test.go.
func findTus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: tus-client VAR")
	}
	dir, err := tusClient()
	if err != nil {
		ts.Fatalf("install tus-js-client (needs node and npm): %v", err)
	}
	ts.Setenv(args[0], filepath.Join(dir, "upload.js"))
}
