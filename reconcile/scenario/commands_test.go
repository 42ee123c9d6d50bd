package scenario

import (
	"os"
	"strings"
	"testing"
)

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
