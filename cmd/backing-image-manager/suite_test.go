package main

import (
	"os"
	"strings"
	"testing"
)

func TestExampleSuites(t *testing.T) {
	out, errOut, err := try(t, "test", "../../examples/suites", "--config-dir", "../../examples/suites/config")
	if err != nil || !strings.HasSuffix(out, "\n3 scenarios passed.\n") {
		t.Errorf("%v\n%s%s", err, out, errOut)
	}
}

// TestReadmeHasCommandsOfScenarios: the list in the README is that of the program.
func TestReadmeHasCommandsOfScenarios(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range allCommands() {
		if !strings.Contains(string(readme), "\n    "+c.synopsis) {
			t.Errorf("README has no line for %s", c.synopsis)
		}
	}
}
