package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestExamplesPassValidateStrict(t *testing.T) {
	dirs, err := filepath.Glob("../../examples/*")
	configs, err2 := filepath.Glob("../../examples/kubernetes/*/*/config") // an overlay changes files of its base
	if err := errors.Join(err, err2); err != nil || len(dirs) == 0 || len(configs) == 0 {
		t.Fatalf("examples %q and %q, error %v", dirs, configs, err)
	}
	for _, dir := range append(configs, dirs...) {
		switch filepath.Base(dir) {
		case "kubernetes":
			dir = filepath.Join(dir, "base")
		case "fleet":
			dir = filepath.Join(dir, "config") // the other files are no configuration
		case "systemd":
			continue
		}
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			continue
		}
		if out, errOut, err := try(t, "validate", "--strict", dir); err != nil {
			t.Errorf("%s: %v\n%s%s", dir, err, out, errOut)
		}
	}
}

// A new user copies the configuration of the README.
func TestConfigurationOfTheReadmePassesValidateStrict(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no configuration")
	}
	for _, b := range blocks {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.yaml"), b[1], 0o600); err != nil {
			t.Fatal(err)
		}
		if out, errOut, err := try(t, "validate", "--strict", dir); err != nil {
			t.Errorf("%v\n%s%s%s", err, b[1], out, errOut)
		}
	}
}

// The commands of the example workflow must succeed in a copy of the example, which stands for a
// checkout.
func TestCommandsOfTheExampleWorkflowRun(t *testing.T) {
	example, err := filepath.Abs("../../examples/fleet")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(example, ".github/workflows/plan.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	checkout := filepath.Join(t.TempDir(), "checkout")
	for _, dir := range []string{checkout, filepath.Join(checkout, "../base")} {
		if err := os.CopyFS(dir, os.DirFS(example)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(checkout)
	commands := regexp.MustCompile(`(?m)- run: backing-image-manager (.*?)( >\S+)?$`).FindAllSubmatch(text, -1)
	if len(commands) != 2 {
		t.Fatalf("the workflow has %d commands, want 2", len(commands))
	}
	for _, c := range commands {
		if out, errOut, err := try(t, strings.Fields(string(c[1]))...); err != nil || errOut != "" {
			t.Errorf("%s: %v\n%s%s", c[1], err, out, errOut)
		}
	}
}

func TestExampleScenariosPass(t *testing.T) {
	out, errOut, err := try(t, "test", "../../examples/suites", "--config-dir", "../../examples/suites/config")
	if err != nil || !strings.HasSuffix(out, "\n4 scenarios passed.\n") {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
}
