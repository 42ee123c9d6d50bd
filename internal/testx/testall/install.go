package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// installMissing installs the Debian packages of missing programs, if this process may install
// packages. It prints errors and does not return them: tests that need the programs are then skipped
// or fail.
func installMissing(ctx context.Context) {
	var packages []string
	var reasons strings.Builder
	for _, p := range need.List {
		if p.Packages == "" || p.Extract != "" || isThere(ctx, p) {
			continue
		}
		fmt.Fprintf(&reasons, "  %-16s package %-16s tests use it to %s\n", p.Name, strings.ReplaceAll(p.Packages, " ", ", "), p.Reason)
		packages = append(packages, strings.Fields(p.Packages)...)
	}
	if len(packages) == 0 {
		return
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	fmt.Printf("These programs are missing:\n%s", reasons.String())
	before, why := rights(ctx)
	if why != "" {
		fmt.Printf("Cannot install them: %s. Tests that need them are skipped. To install them:\n  apt-get install --no-install-recommends %s\n", why, strings.Join(packages, " "))
		return
	}
	fmt.Println("Installing them with apt-get.")
	for _, args := range [][]string{
		{"apt-get", "update", "-qq"},
		append([]string{"apt-get", "install", "-y", "-qq", "-o", "Dpkg::Use-Pty=0", "--no-install-recommends"}, packages...),
	} {
		line := slices.Concat(before, []string{"env", "DEBIAN_FRONTEND=noninteractive"}, args)
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		var output strings.Builder
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Run(); err != nil {
			fmt.Printf("%s: %v\n%s", strings.Join(line, " "), err, output.String())
			return
		}
	}
}

// isThere reports whether a program can be used. A compiler cannot be used without the headers of the
// C library.
func isThere(ctx context.Context, p need.Program) bool {
	if p.Name == "gcc" {
		return compiles(ctx)
	}
	_, err := p.Path()
	return err == nil
}

// rights returns the command that must precede apt-get, or the reason why this process cannot install
// packages.
func rights(ctx context.Context) (before []string, why string) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, "there is no apt-get"
	}
	if os.Geteuid() == 0 {
		return nil, ""
	}
	if _, err := exec.LookPath("sudo"); err != nil {
		return nil, "this user is not root, and there is no sudo"
	}
	if err := exec.CommandContext(ctx, "sudo", "-n", "true").Run(); err != nil {
		return nil, "this user is not root, and sudo needs a password"
	}
	return []string{"sudo", "-n"}, ""
}

// missing contains the requirements that are still missing after the installation.
type missing struct {
	names    []string // names in need.List
	compiles bool     // a C compiler works, which the race detector needs
}

// findMissing finds the missing programs. It also fetches the programs of need.List that are not
// installed as Debian packages.
func findMissing(ctx context.Context) missing {
	m := missing{compiles: compiles(ctx)}
	_, noKubectl := exec.LookPath("kubectl")
	for _, p := range need.List {
		switch {
		case p.Name == "kustomize" && noKubectl == nil: // kubectl includes kustomize
		case p.Packages == "", p.Extract != "":
			fmt.Printf("Fetching %s, which tests use to %s\n", cmp.Or(p.Module, p.NPM, p.Name), p.Reason)
			if err := p.Fetch(ctx, "."); err != nil {
				fmt.Println(err)
				m.names = append(m.names, p.Name)
			}
		case !isThere(ctx, p):
			m.names = append(m.names, p.Name)
		}
	}
	return m
}

// compiles reports whether cgo can compile: there is a C compiler, and the headers of the C library
// are installed.
func compiles(ctx context.Context) bool {
	cc, err := exec.CommandContext(ctx, "go", "env", "CC").Output()
	if err != nil {
		return false
	}
	line := append(strings.Fields(string(cc)), "-fsyntax-only", "-x", "c", "-")
	cmd := exec.CommandContext(ctx, line[0], line[1:]...)
	cmd.Stdin = strings.NewReader("#include <stdlib.h>\n#include <pthread.h>\nint main(void) { return 0; }\n")
	cmd.Stdout, cmd.Stderr = io.Discard, io.Discard
	return cmd.Run() == nil
}
