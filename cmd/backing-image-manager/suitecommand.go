package main

import (
	"fmt"
	"slices"
	"strings"
)

// command is one that only scenarios have.
type command struct {
	synopsis string
	help     string
	least    int      // arguments that are neither options nor words
	most     int      // of these; -1: any number
	options  []string // NAME= with a value
	words    []string // that may be there, in any order
	negated  bool     // act may be negated
	// One of these does it.
	act  func(*stage, input) error
	look func(*stage, input) (finding, error)
}

func (c command) name() string {
	name, _, _ := strings.Cut(c.synopsis, " ")
	return name
}

// input is what a command was given.
type input struct {
	neg     bool
	args    []string
	words   []string
	options map[string][]string
}

// option is the last value of an option.
func (in input) option(name string) (value string, given bool) {
	all := in.options[name]
	if len(all) == 0 {
		return "", false
	}
	return all[len(all)-1], true
}

func (in input) has(word string) bool { return slices.Contains(in.words, word) }

// one is the only one of some words that was given, or the first of them if none was.
func (in input) one(of ...string) (string, error) {
	given := slices.DeleteFunc(slices.Clone(in.words), func(w string) bool { return !slices.Contains(of, w) })
	switch len(given) {
	case 0:
		return of[0], nil
	case 1:
		return given[0], nil
	}
	return "", fmt.Errorf("%s exclude each other", strings.Join(given, " and "))
}

func (c command) parse(args []string) (input, error) {
	in := input{options: map[string][]string{}}
	for _, arg := range args {
		name, value, isOption := strings.Cut(arg, "=")
		switch {
		case len(in.args) < c.least:
			in.args = append(in.args, arg)
		case isOption && slices.Contains(c.options, name):
			in.options[name] = append(in.options[name], value)
		case slices.Contains(c.words, arg):
			in.words = append(in.words, arg)
		case c.most < 0 || len(in.args) < c.most:
			in.args = append(in.args, arg)
		default:
			return in, fmt.Errorf("%s: %q is not understood; it is: %s", c.name(), arg, c.synopsis)
		}
	}
	if len(in.args) < c.least {
		return in, fmt.Errorf("%s: something is missing; it is: %s", c.name(), c.synopsis)
	}
	return in, nil
}

func allCommands() []command { return slices.Concat(changing, looking) }

// stageCommand is the command of that name, nil if scenarios have none.
func stageCommand(name string) *command {
	for _, c := range allCommands() {
		if c.name() == name {
			return &c
		}
	}
	return nil
}

func stageNames() []string {
	var names []string
	for _, c := range allCommands() {
		names = append(names, c.name())
	}
	return names
}

// synopses are the commands as the help shows them.
func synopses(commands []command) string {
	var b strings.Builder
	for _, c := range commands {
		fmt.Fprintf(&b, "  %s\n", c.synopsis)
		for line := range strings.Lines(c.help) {
			fmt.Fprintf(&b, "      %s", line)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
