package scenario

import (
	"os"
	"strings"
	"testing"
)

func TestDocumentListsTheCommandsOfScenarios(t *testing.T) {
	document, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range allCommands() {
		if !strings.Contains(string(document), "\n| `"+strings.ReplaceAll(c.synopsis, "|", `\|`)+"`") {
			t.Errorf("docs/scenarios.md has no line for %s", c.synopsis)
		}
	}
}
