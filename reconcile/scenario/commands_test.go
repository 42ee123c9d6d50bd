package scenario

import (
	"os"
	"strings"
	"testing"
)

func TestReadmeListsTheCommandsOfScenarios(t *testing.T) {
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
