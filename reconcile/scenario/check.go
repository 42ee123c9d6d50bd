package scenario

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/tools/txtar"
)

// builtins are the commands of testscript that a scenario may have, and which of their
// arguments are files. The others run programs, or lead out of the scenario's folder; as
// testscript has them whatever it is told, scenarios are looked through before.
var builtins = map[string]func(args []word) []word{
	"cmp":     allArgs,
	"cmpenv":  allArgs,
	"cp":      allArgs,
	"env":     noArgs,
	"exists":  allArgs,
	"grep":    lastArg,
	"mkdir":   allArgs,
	"mv":      allArgs,
	"rm":      allArgs,
	"skip":    noArgs,
	"stderr":  noArgs,
	"stdout":  noArgs,
	"stop":    noArgs,
	"unquote": allArgs,
}

// unwanted are the others.
var unwanted = []string{"cd", "chmod", "exec", "kill", "stdin", "symlink", "ttyin", "ttyout", "unix2dos", "wait"}

func builtinCommandNames() []string { return slices.Sorted(maps.Keys(builtins)) }

func allArgs(args []word) []word { return args }

func noArgs([]word) []word { return nil }

func lastArg(args []word) []word { return args[max(0, len(args)-1):] }

// checkScenario says what is wrong with a scenario before it is played.
func checkScenario(file string, a *txtar.Archive) []string {
	var mistakes []string
	line, commands := 0, 0
	for text := range strings.Lines(string(a.Comment)) {
		line++
		words, err := split(strings.TrimSuffix(text, "\n"))
		if err == nil && len(words) > 0 {
			err = checkCommand(words)
		}
		if err != nil || len(words) > 0 {
			commands++
		}
		if err != nil {
			mistakes = append(mistakes, fmt.Sprintf("%s:%d: %v", file, line, err))
		}
	}
	if commands == 0 {
		mistakes = append(mistakes, file+`: no commands: they come first, before the files, each of which begins with a line "-- NAME --"`)
	}
	seen := map[string]bool{}
	for _, f := range a.Files {
		name := filepath.Clean(f.Name)
		if !filepath.IsLocal(name) || strings.Contains(name, "$") {
			mistakes = append(mistakes, fmt.Sprintf("%s: file %q is not in the scenario's folder: give it a relative path without variables", file, f.Name))
		}
		if seen[name] {
			mistakes = append(mistakes, fmt.Sprintf("%s: file %q is there twice", file, f.Name))
		}
		seen[name] = true
	}
	return mistakes
}

func checkCommand(words []word) error {
	if words[0].text == "!" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("a ! stands alone, without a command")
	}
	name, args := words[0], words[1:]
	files, isBorrowed := builtins[name.text]
	switch {
	case name.expands:
		return fmt.Errorf("a command is no variable: %s", name.text)
	case strings.HasPrefix(name.text, "["):
		return fmt.Errorf("conditions such as %s are not for scenarios: they are the same everywhere", name.text)
	case strings.HasPrefix(name.text, "--"):
		return fmt.Errorf(`%s is no command; a file begins with a line "-- NAME --"`, name.text)
	case findCommand(name.text) != nil:
		return nil
	case slices.Contains(unwanted, name.text):
		return fmt.Errorf("%s is not for scenarios: they run nothing, and touch nothing but their own folder", name.text)
	case !isBorrowed:
		return unknownCommand(name.text)
	}
	for _, arg := range files(args) {
		if arg.expands || !filepath.IsLocal(arg.text) {
			return fmt.Errorf("%s %s: files are named relative to the scenario's folder, without variables and \"..\"", name.text, arg.text)
		}
	}
	return nil
}

func unknownCommand(name string) error {
	near := &cobra.Command{SuggestionsMinimumDistance: 2} // cobra knows which words are near
	for _, known := range slices.Concat(commandNames(), builtinCommandNames()) {
		near.AddCommand(&cobra.Command{Use: known, Run: func(*cobra.Command, []string) {}})
	}
	if rest, ok := strings.CutPrefix(name, "!"); ok {
		return fmt.Errorf("unknown command %q: write \"! %s\"", name, rest)
	}
	if similar := near.SuggestionsFor(name); len(similar) > 0 {
		return fmt.Errorf("unknown command %q: did you mean %s?", name, strings.Join(similar, " or "))
	}
	return fmt.Errorf("unknown command %q", name)
}

// word is one word of a command.
type word struct {
	text    string
	expands bool // it has variables
}

// split splits a line as testscript does: at blanks, but for what is in single quotes,
// in which a doubled one is one; # begins a comment.
func split(line string) ([]word, error) {
	var words []word
	var now *word
	quoted := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		blank := c == ' ' || c == '\t' || c == '\r'
		switch {
		case !quoted && c == '#':
			return words, nil
		case !quoted && blank:
			now = nil
			continue
		}
		if now == nil {
			words = append(words, word{})
			now = &words[len(words)-1]
		}
		switch {
		case c != '\'':
			now.text += line[i : i+1]
			now.expands = now.expands || !quoted && c == '$'
		case quoted && i+1 < len(line) && line[i+1] == '\'':
			now.text += "'"
			i++
		default:
			quoted = !quoted
		}
	}
	if quoted {
		return nil, fmt.Errorf("a quote is not closed: %s", line)
	}
	return words, nil
}
