package need

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// recorder is a test that panics with its result.
type recorder struct{}

func (recorder) Skip(a ...any)  { panic("skip: " + fmt.Sprint(a...)) }
func (recorder) Fatal(a ...any) { panic("fatal: " + fmt.Sprint(a...)) }

func outcome(names ...string) (end string) {
	defer func() {
		if r := recover(); r != nil {
			end = r.(string)
		}
	}()
	Programs(recorder{}, names...)
	return "run"
}

func TestPrograms(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := os.WriteFile(os.Getenv("PATH")+"/zstd", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ missing, strict, names, want string }{
		{"", "", "zstd versitygw", "run"},
		{"node", "", "zstd", "run"},
		{"zstd", "", "zstd", "skip: needs zstd (Debian package zstd): it is not installed"},
		{"", "", "zstd node", "skip: needs node (Debian package nodejs): it is not installed"},
		{"", "1", "node", "fatal: needs node (Debian package nodejs): it is not installed"},
		{"versitygw", "", "versitygw", "skip: needs versitygw (" + Versitygw + "): it could not be fetched"},
		{"promtool", "", "promtool", "skip: needs promtool (Debian package prometheus): it could not be extracted"},
		{"", "", "nodejs", "fatal: internal/testx/need has no program nodejs: add it to List"},
	} {
		t.Setenv(MissingVar, c.missing)
		t.Setenv(StrictVar, c.strict)
		if got := outcome(strings.Fields(c.names)...); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestListIsSortedAndComplete(t *testing.T) {
	if !slices.IsSortedFunc(List, func(a, b Program) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("List is not sorted by name")
	}
	for _, p := range List {
		if p.Name == "" || p.Reason == "" || (p.Packages == "") == (p.Module+p.NPM == "") {
			t.Errorf("%+v needs a name, a reason, and packages, a module or a folder", p)
		}
		if p.Extract != "" && len(strings.Fields(p.Packages)) != 1 {
			t.Errorf("%+v needs one package to extract from", p)
		}
	}
}
