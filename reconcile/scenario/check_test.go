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

// TestCheckScenario: what would run a program, or reach out of the scenario's folder, is
// refused before anything of it is played.
func TestCheckScenario(t *testing.T) {
	for _, tt := range []struct{ script, want string }{
		{"converge\n! placed parrot node1/ssd\ncp config/a b # to try\ngrep '^x$' stdout\ncmp stdout golden\n", ""},
		{"env X=exec\n$X true\n", "a.txtar:2: a command is no variable: $X"},
		{"! 'exec' true\n", "a.txtar:1: exec is not for scenarios: they run nothing, and touch nothing but their own folder"},
		{"ex'ec' true &\n", "a.txtar:1: exec is not for scenarios: they run nothing, and touch nothing but their own folder"},
		{"\texec true\n", "a.txtar:1: exec is not for scenarios: they run nothing, and touch nothing but their own folder"},
		{"[linux] exec true\n", "a.txtar:1: conditions such as [linux] are not for scenarios: they are the same everywhere"},
		{"rm ../x\n", `a.txtar:1: rm ../x: files are named relative to the scenario's folder, without variables and ".."`},
		{"rm $WORK/../x\n", `a.txtar:1: rm $WORK/../x: files are named relative to the scenario's folder, without variables and ".."`},
		{"cp stdout /etc/passwd\n", `a.txtar:1: cp /etc/passwd: files are named relative to the scenario's folder, without variables and ".."`},
		{"grep root /etc/passwd\n", `a.txtar:1: grep /etc/passwd: files are named relative to the scenario's folder, without variables and ".."`},
		{"plcaed parrot node1/ssd\n", `a.txtar:1: unknown command "plcaed": did you mean placed?`},
		{"!placed parrot node1/ssd\n", `a.txtar:1: unknown command "!placed": write "! placed"`},
		{"frobnicate\n", `a.txtar:1: unknown command "frobnicate"`},
		{"!\n", "a.txtar:1: a ! stands alone, without a command"},
		{"stdout 'a\n", "a.txtar:1: a quote is not closed: stdout 'a"},
		{"plan\n--config/a.yaml--\n", `a.txtar:2: --config/a.yaml-- is no command; a file begins with a line "-- NAME --"`},
		{"# Nothing.\n-- config/a.yaml --\n", `a.txtar: no commands: they come first, before the files, each of which begins with a line "-- NAME --"`},
		{"plan\n-- ../a.yaml --\n", `a.txtar: file "../a.yaml" is not in the scenario's folder: give it a relative path without variables`},
		{"plan\n-- $HOME/a --\n", `a.txtar: file "$HOME/a" is not in the scenario's folder: give it a relative path without variables`},
		{"plan\n-- a --\n-- ./a --\n", `a.txtar: file "./a" is there twice`},
	} {
		if got := strings.Join(checkScenario("a.txtar", txtar.Parse([]byte(tt.script))), "\n"); got != tt.want {
			t.Errorf("%q: got\n%s\nwant\n%s", tt.script, got, tt.want)
		}
	}
}

// FuzzSplit holds split against testscript, which splits the same lines afterwards.
func FuzzSplit(f *testing.F) {
	for _, line := range []string{"", "a b\tc\r", "'a b' 'it''s' ''", "a'b'c#d", "'#' '", "''''", "ä 'ö#' ü"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.ContainsAny(line, "\n$") {
			t.Skip("two lines, or what only testscript knows the value of")
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
			t.Errorf("testscript has %q, we have %q", got, want)
		}
	})
}
