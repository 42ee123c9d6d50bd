package script

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the list of commands into testdata/script/README.md")

// TestREADMEListsTheCommands compares the list in the README with the table of commands.
func TestREADMEListsTheCommands(t *testing.T) {
	const file, marker = "../../../testdata/script/README.md", "`go test ./internal/testx/script -update`.\n\n"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, list, found := strings.Cut(string(data), marker)
	if !found {
		t.Fatalf("%s has no line %q", file, marker)
	}
	if *update {
		if err := os.WriteFile(file, []byte(text+marker+readme()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if list != readme() {
		t.Errorf("%s does not list the commands of the table: run go test ./internal/testx/script -update", file)
	}
}

// TestTableIsConsistent checks that the names of commands are unique and differ from those of
// testscript.
func TestTableIsConsistent(t *testing.T) {
	seen := map[string]bool{}
	for _, name := range strings.Fields("cat cd chmod cmp cmpenv cp env exec exists grep kill mkdir mv rm skip stderr stdin stdout stop symlink ttyin ttyout unix2dos unquote wait") {
		seen[name] = true
	}
	for _, g := range groups() {
		for _, c := range g.commands {
			if seen[c.name] {
				t.Errorf("two commands are named %s", c.name)
			}
			seen[c.name] = true
			if !strings.HasSuffix(c.doc, ".") || c.max >= 0 && c.max < c.min {
				t.Errorf("%s: %+v", c.name, c)
			}
		}
	}
}
