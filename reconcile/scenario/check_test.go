package scenario

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
)

func TestCheckScenarioRejectsWhatLeavesTheFolder(t *testing.T) {
	const outside = `: a file must be in the scenario's folder: use a relative path without variables and ".."`
	const execUnknown = `unknown command "exec": a scenario cannot run programs`
	for _, tt := range []struct{ script, want string }{
		{"converge\n! placed parrot node1/ssd\ncp config/a b # to try\ngrep '^x$' stdout\ncmp stdout golden\n", ""},
		{"env X=exec\n$X true\n", "a.txtar:2: a command must not contain a variable: $X"},
		{"! 'exec' true\n", "a.txtar:1: " + execUnknown},
		{"ex'ec' true &\n", "a.txtar:1: " + execUnknown},
		{"\texec true\n", "a.txtar:1: " + execUnknown},
		{"[linux] exec true\n", `a.txtar:1: unknown command "[linux]": a scenario cannot run programs`},
		{"rm ../x\n", "a.txtar:1: rm ../x" + outside},
		{"rm $WORK/../x\n", "a.txtar:1: rm $WORK/../x" + outside},
		{"cp stdout /etc/passwd\n", "a.txtar:1: cp /etc/passwd" + outside},
		{"grep root /etc/passwd\n", "a.txtar:1: grep /etc/passwd" + outside},
		{"plcaed parrot node1/ssd\n", `a.txtar:1: unknown command "plcaed": did you mean placed?`},
		{"!placed parrot node1/ssd\n", `a.txtar:1: unknown command "!placed": write "! placed"`},
		{"frobnicate\n", `a.txtar:1: unknown command "frobnicate": a scenario cannot run programs`},
		{"!\n", "a.txtar:1: the command after ! is missing"},
		{"stdout 'a\n", "a.txtar:1: a quote is not closed: stdout 'a"},
		{"plan\n--config/a.yaml--\n", `a.txtar:2: --config/a.yaml-- is not a command; a file begins with a line "-- NAME --"`},
		{"# Nothing.\n-- config/a.yaml --\n", `a.txtar: no commands: write them before the files; each file begins with a line "-- NAME --"`},
		{"plan\n-- ../a.yaml --\n", `a.txtar: file "../a.yaml" must be in the scenario's folder: use a relative path without variables`},
		{"plan\n-- $HOME/a --\n", `a.txtar: file "$HOME/a" must be in the scenario's folder: use a relative path without variables`},
		{"plan\n-- a --\n-- ./a --\n", `a.txtar: file "./a" occurs twice`},
	} {
		got := ""
		if err := checkScenario("a.txtar", txtar.Parse([]byte(tt.script))); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%q: got\n%s\nwant\n%s", tt.script, got, tt.want)
		}
	}
}

// A command of testscript that this package does not know would be unknown to the check, too.
func TestNoOtherBuiltinIsAllowed(t *testing.T) {
	for _, name := range []string{"cd", "chmod", "exec", "kill", "stdin", "symlink", "ttyin", "ttyout", "unix2dos", "wait"} {
		if err := checkCommand([]word{{text: name}}); err == nil {
			t.Errorf("%s is allowed", name)
		}
	}
}

// FuzzSplit compares split with testscript.
func FuzzSplit(f *testing.F) {
	for _, line := range []string{"", "a b\tc\r", "'a b' 'it''s' ''", "a'b'c#d", "'#' '", "''''", "ä 'ö#' ü"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\n$") {
			t.Skip("several lines, or a variable")
		}
		file := filepath.Join(t.TempDir(), "a.txtar")
		if err := os.WriteFile(file, []byte("record "+line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var got []string
		p := &scriptT{}
		p.Run("", func(testscript.T) {
			testscript.RunT(p, testscript.Params{Files: []string{file}, Cmds: map[string]func(*testscript.TestScript, bool, []string){
				"record": func(_ *testscript.TestScript, _ bool, args []string) { got = args },
			}})
		})
		words, err := split("record " + line)
		if (err != nil) != p.failed {
			t.Fatalf("error %v; testscript: %s", err, p.log.String())
		}
		if err != nil {
			return
		}
		var want []string
		for _, w := range words[1:] {
			want = append(want, w.text)
		}
		if !slices.Equal(got, want) {
			t.Errorf("testscript splits into %q, split into %q", got, want)
		}
	})
}
