package scenario

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// builtins are the commands of testscript that a scenario may use. The value is the number of last arguments that are files; -1
// means all arguments. testscript has more commands, also some that run programs or leave the folder of the scenario. Therefore
// checkScenario rejects every command of testscript that is not in builtins, before the scenario runs.
var builtins = map[string]int{
	"cmp": -1, "cmpenv": -1, "cp": -1, "env": 0, "exists": -1, "grep": 1, "mkdir": -1, "mv": -1, "rm": -1, "skip": 0,
	"stderr": 0, "stdout": 0, "stop": 0, "unquote": -1,
}

// checkScenario returns all errors that can be found before the scenario runs.
func checkScenario(file string, a *txtar.Archive) error {
	var errs []error
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
			errs = append(errs, fmt.Errorf("%s:%d: %w", file, line, err))
		}
	}
	if commands == 0 {
		errs = append(errs, fmt.Errorf(`%s: no commands: write them before the files; each file begins with a line "-- NAME --"`, file))
	}
	seen := map[string]bool{}
	for _, f := range a.Files {
		name := filepath.Clean(f.Name)
		if !filepath.IsLocal(name) || strings.Contains(name, "$") {
			errs = append(errs, fmt.Errorf("%s: file %q must be in the scenario's folder: use a relative path without variables", file, f.Name))
		}
		if seen[name] {
			errs = append(errs, fmt.Errorf("%s: file %q occurs twice", file, f.Name))
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}

func checkCommand(words []word) error {
	if words[0].text == "!" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("the command after ! is missing")
	}
	name, args := words[0], words[1:]
	files, isBuiltin := builtins[name.text]
	switch {
	case name.expands: // before the variable is set, the command is unknown
		return fmt.Errorf("a command must not contain a variable: %s", name.text)
	case strings.HasPrefix(name.text, "--"):
		return fmt.Errorf(`%s is not a command; a file begins with a line "-- NAME --"`, name.text)
	case isBuiltin:
		if files >= 0 {
			args = args[max(0, len(args)-files):]
		}
		return checkFiles(name.text, args)
	case findCommand(name.text) == nil:
		return unknownCommand(name.text)
	}
	return nil
}

// checkFiles checks that the files of a command are in the folder of the scenario.
func checkFiles(command string, files []word) error {
	for _, f := range files {
		if f.expands || !filepath.IsLocal(f.text) {
			return fmt.Errorf("%s %s: a file must be in the scenario's folder: use a relative path without variables and \"..\"", command, f.text)
		}
	}
	return nil
}

func unknownCommand(name string) error {
	if rest, ok := strings.CutPrefix(name, "!"); ok {
		return fmt.Errorf("unknown command %q: write \"! %s\"", name, rest)
	}
	known := slices.Sorted(maps.Keys(builtins))
	for _, c := range allCommands() {
		known = append(known, c.name())
	}
	if near, ok := document.Nearest(name, known); ok {
		return fmt.Errorf("unknown command %q: did you mean %s?", name, near)
	}
	return fmt.Errorf("unknown command %q: a scenario cannot run programs", name)
}

// word is one word of a line.
type word struct {
	text    string
	expands bool // it contains a variable
}

// split splits a line into words like testscript: at blanks, except in single quotes. Two
// quotes in quotes are one quote. # begins a comment.
func split(line string) ([]word, error) {
	var words []word
	var current *word
	quoted := false
	for i := 0; i < len(line); i++ {
		c := line[i]
		blank := c == ' ' || c == '\t' || c == '\r'
		switch {
		case !quoted && c == '#':
			return words, nil
		case !quoted && blank:
			current = nil
			continue
		}
		if current == nil {
			words = append(words, word{})
			current = &words[len(words)-1]
		}
		switch {
		case c != '\'':
			current.text += line[i : i+1]
			current.expands = current.expands || !quoted && c == '$'
		case quoted && i+1 < len(line) && line[i+1] == '\'':
			current.text += "'"
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
