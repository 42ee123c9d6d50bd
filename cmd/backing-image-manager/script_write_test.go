package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
)

func put(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: put FILE TEXT...")
	}
	writeAtOnce(ts, args[0], strings.Join(args[1:], " ")+"\n")
}

func fill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: fill FILE TEMPLATE")
	}
	writeAtOnce(ts, args[0], os.Expand(ts.ReadFile(args[1]), ts.Getenv))
}

func writeAtOnce(ts *testscript.TestScript, file, text string) {
	name := ts.MkAbs(file)
	hidden := filepath.Join(filepath.Dir(name), "."+filepath.Base(name)+".tmp")
	ts.Check(os.MkdirAll(filepath.Dir(name), 0o755))
	ts.Check(os.WriteFile(hidden, []byte(text), 0o644))
	ts.Check(os.Rename(hidden, name))
}

func smallDisk(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: small-disk DIR SIZE")
	}
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o755))
	ts.Check(syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", parseSize(ts, args[1]))))
	ts.Defer(func() { ts.Check(syscall.Unmount(dir, syscall.MNT_DETACH)) })
}
