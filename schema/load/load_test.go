package load

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

var update = flag.Bool("update", false, "rewrite the goldens")

// TestLoad loads the files of each archive in testdata/load as one directory
// and compares the result with its "want". An archive with several
// "want" is a directory that changes: one Loader reads one state after the other.
// Each state begins after the "want" before it, and keeps the files that the archive does
// not repeat. An empty file removes the file.
func TestLoad(t *testing.T) {
	archives, err := filepath.Glob("testdata/load/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no archives: %v", err)
	}
	for i, name := range archives {
		if race.Enabled && i%4 != 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) { testArchive(t, name) })
	}
}

func testArchive(t *testing.T, name string) {
	a, err := txtar.ParseFile(name)
	if err != nil {
		t.Fatal(err)
	}
	loader, files := NewLoader(), map[string]configdir.File{}
	declared := map[string]model.Declaration{} // by image, at an earlier state
	for i, f := range a.Files {
		if f.Name != "want" {
			files[f.Name] = configdir.File{Path: f.Name, Data: f.Data}
			if len(f.Data) == 0 {
				delete(files, f.Name)
			}
			continue
		}
		r := loader.Load(t.Context(), snapshot(files))
		got := describe(r) + describeRemoved(r, declared)
		if strings.Contains(got, "hunter2") {
			t.Errorf("the result contains a secret:\n%s", got)
		}
		if *update {
			a.Files[i].Data = []byte(got)
		} else if got != string(f.Data) {
			t.Errorf("got:\n%s\nwant:\n%s", got, f.Data)
		}
	}
	if *update {
		if err := os.WriteFile(name, txtar.Format(a), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func snapshot(files map[string]configdir.File) configdir.Snapshot {
	var s configdir.Snapshot
	for _, path := range sortedKeys(files) {
		s.Files = append(s.Files, files[path])
	}
	return s
}

// describeRemoved returns a line for each image that is not declared any more. The line says
// whether its copies are kept: a document that is skipped must not delete what it declared.
func describeRemoved(r Result, declared map[string]model.Declaration) string {
	var b strings.Builder
	for _, name := range sortedKeys(declared) {
		held := slices.ContainsFunc(r.Invalid, func(h schema.InvalidImage) bool { return h.Name == name })
		if _, ok := r.Config.Images[name]; ok || held {
			continue
		}
		if reason, undecided := r.Undecided.MayDeclare(name, declared[name]); undecided {
			fmt.Fprintf(&b, "kept: %s: %s\n", name, reason)
		} else {
			fmt.Fprintf(&b, "removed: %s\n", name)
		}
	}
	for name, image := range r.Config.Images {
		declared[name] = image.Declaration
	}
	return b.String()
}

// describe formats a result.
func describe(r Result) string {
	var b strings.Builder
	line := func(what string, v any) { fmt.Fprintf(&b, "%s%v\n", what, v) }
	for _, p := range r.Errors {
		line("", p)
	}
	for _, p := range r.Warnings {
		line("warning: ", p)
	}
	for _, s := range r.Skipped {
		line("skipped: ", fmt.Sprint(s.Position, " ", s.APIVersion, " ", s.Kind, " ", s.Name))
	}
	for _, h := range r.Invalid {
		line("invalid: ", fmt.Sprint(h.Name, map[bool]string{true: " (last valid)", false: " (unusable)"}[h.Stale]))
	}
	line("images: ", strings.Join(sortedKeys(r.Config.Images), " "))
	line("allowed: ", r.Allowed)
	if (r.Digest == "") != (len(r.Errors) > 0) {
		line("digest: ", r.Digest)
	}
	return b.String()
}

func load(t *testing.T, yaml string) Result {
	t.Helper()
	return NewLoader().Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "config.yaml", Data: []byte(yaml)}}})
}

func mustLoad(t *testing.T, yaml string) schema.Config {
	t.Helper()
	r := load(t, yaml)
	if r.Allowed != schema.Everything {
		t.Fatalf("invalid:\n%s", describe(r))
	}
	return r.Config
}

// TestReloadsKeepNoMemory: a Loader that kept the results for each old state of a file would
// grow by kilobytes with each reload.
func TestReloadsKeepNoMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector keeps memory: CI runs this also without it")
	}
	l := NewLoader()
	const reloads = 250
	var before int64
	for i := range 50 + reloads {
		if i == 50 {
			before = heap()
		}
		text := "settings: {cleanupWaitInterval: 5}\nimages:\n"
		for n := range 5 {
			text += fmt.Sprintf("  image-%d: {source: {download: {url: \"https://example.com/%d\"}}, minNumberOfCopies: %d}\n", n, i, 1+n)
		}
		mustBeValid(t, l.Load(t.Context(), configdir.Snapshot{Files: []configdir.File{{Path: "a.yaml", Data: []byte(text)}}}))
	}
	grown := heap() - before
	runtime.KeepAlive(l)
	if grown > int64(reloads)<<10 {
		t.Errorf("%d reloads keep %d KiB", reloads, grown>>10)
	}
}

func TestInterruptedLoadAllowsNothingAndForgetsNothing(t *testing.T) {
	l := NewLoader()
	images := manyImages(3)
	mustBeValid(t, l.Load(t.Context(), oneFile(images[:1])))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := l.Load(ctx, oneFile(images))
	if r.Allowed != schema.ObserveOnly || len(r.Errors) != 1 || r.Digest != "" {
		t.Errorf("interrupted: %s", describe(r))
	}
	r = l.Load(t.Context(), oneFile(images))
	mustBeValid(t, r)
	if len(r.Config.Images) != 3 {
		t.Errorf("after the interruption: %s", describe(r))
	}
}
