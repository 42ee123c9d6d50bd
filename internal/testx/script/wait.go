package script

import (
	"fmt"
	"os"
	"regexp"
	"time"
)

// waitCommands is a function, because the command eventually reads the table that contains it.
func waitCommands() []command {
	return []command{
		{name: "eventually", args: "[!] COMMAND [ARG]...", min: 1, max: -1, run: eventually,
			doc: "Repeats an asserting command, or exec, exists or grep, until it succeeds (with !: until it fails), for at most a minute."},
	}
}

func eventually(s script, args []string) error {
	want := true
	if args[0] == "!" {
		want, args = false, args[1:]
	}
	if len(args) == 0 {
		s.Fatalf("usage: eventually [!] COMMAND [ARG]...")
	}
	again := time.NewTicker(100 * time.Millisecond) // each call costs time of the program under test
	defer again.Stop()
	over := time.After(timeout)
	for {
		s.stdout.Reset()
		s.stderr.Reset()
		err := s.attempt(args[0], args[1:])
		if (err == nil) == want {
			return nil
		}
		select {
		case <-again.C:
		case <-over:
			return fmt.Errorf("not within %v: %w", timeout, err)
		}
	}
}

// attempt runs a command that may fail without ending the script.
func (s script) attempt(name string, args []string) error {
	switch name {
	case "exec":
		return s.Exec(args[0], args[1:]...)
	case "exists":
		_, err := os.Lstat(s.MkAbs(args[0]))
		return err
	case "grep":
		return s.grep(args)
	}
	c, found := lookup(name)
	if !found || !c.asserts {
		s.Fatalf("eventually: %s is not an asserting command", name)
	}
	return c.try(s, args)
}

func (s script) grep(args []string) error {
	if len(args) != 2 {
		s.Fatalf("usage: grep PATTERN FILE")
	}
	match, err := regexp.Compile("(?m)" + args[0])
	s.Check(err)
	data, err := os.ReadFile(s.MkAbs(args[1]))
	if err == nil && !match.Match(data) {
		err = fmt.Errorf("no match for %q in %s:\n%s", args[0], args[1], data)
	}
	return err
}
