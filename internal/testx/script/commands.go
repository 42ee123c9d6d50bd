package script

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/rogpeppe/go-internal/testscript"
)

// command is a command of scripts.
type command struct {
	name string
	args string // arguments, as the README shows them
	doc  string // for the README: sentences whose implicit subject is the command, without line breaks
	// asserts is true if the command checks something and changes nothing. Only such a command can be
	// negated, and repeated with eventually.
	asserts  bool
	min, max int // number of arguments; max -1: any
	run      func(s script, args []string) error
}

// groups returns the table of all commands, in the order of the README.
func groups() []group {
	return []group{
		{"Machine", machineCommands},
		{"Files", fileCommands},
		{"Disks and images", imageCommands},
		{"Upstream servers and connections", append(upstreamCommands, proxyCommands...)},
		{"HTTP", httpCommands},
		{"Daemons and clusters", append(clusterCommands, statusCommands...)},
		{"Longhorn", longhornCommands},
		{"Waiting", waitCommands()},
	}
}

type group struct {
	title    string
	commands []command
}

// testscriptCommands converts the table to the form of testscript.
func testscriptCommands() map[string]func(*testscript.TestScript, bool, []string) {
	all := map[string]func(*testscript.TestScript, bool, []string){}
	for _, g := range groups() {
		for _, c := range g.commands {
			all[c.name] = c.call
		}
	}
	return all
}

// call runs the command in a script.
func (c command) call(ts *testscript.TestScript, neg bool, args []string) {
	s := script{ts, ts.Value(stateKey{}).(*state), &bytes.Buffer{}, &bytes.Buffer{}}
	err := c.try(s, args)
	if s.stdout.Len()+s.stderr.Len() > 0 { // otherwise the output of exec is kept
		_, _ = s.stdout.WriteTo(ts.Stdout()) // it is a strings.Builder
		_, _ = s.stderr.WriteTo(ts.Stderr())
	}
	switch {
	case neg && !c.asserts:
		ts.Fatalf("%s cannot be negated", c.name)
	case neg && err == nil:
		ts.Fatalf("unexpected success")
	case !neg:
		ts.Check(err)
	}
}

// try checks the number of arguments, and then runs the command. A wrong number is always an error of
// the script.
func (c command) try(s script, args []string) error {
	if len(args) < c.min || c.max >= 0 && len(args) > c.max {
		s.Fatalf("usage: %s %s", c.name, c.args)
	}
	return c.run(s, args)
}

// lookup returns the command of the table with the name.
func lookup(name string) (command, bool) {
	for _, g := range groups() {
		if i := slices.IndexFunc(g.commands, func(c command) bool { return c.name == name }); i >= 0 {
			return g.commands[i], true
		}
	}
	return command{}, false
}

// size parses a number of bytes such as 4096, 64KiB or 4MiB.
func (s script) size(text string) int64 {
	n, err := humanize.ParseBytes(strings.TrimSuffix(text, "B"))
	s.Check(err)
	return int64(n)
}

// compare checks the condition "got <|=|> want".
func compare(what string, got float64, operator, want string, parse func(string) int64) error {
	w := float64(parse(want))
	holds := map[string]bool{"<": got < w, "=": got == w, ">": got > w}
	switch ok, known := holds[operator]; {
	case !known:
		return fmt.Errorf("unknown operator %q: use <, = or >", operator)
	case !ok:
		return fmt.Errorf("%s is %.0f, which is not %s %s", what, got, operator, want)
	}
	return nil
}

// readme returns the part of the README that documents the commands, in Markdown.
func readme() string {
	var b strings.Builder
	for _, g := range groups() {
		fmt.Fprintf(&b, "\n### %s\n\n", g.title)
		for _, c := range g.commands {
			mark := ""
			if c.asserts {
				mark = " (asserts)"
			}
			fmt.Fprintf(&b, "- `%s`%s: %s\n", strings.TrimSpace(c.name+" "+c.args), mark, c.doc)
		}
	}
	return strings.TrimSpace(b.String()) + "\n"
}
