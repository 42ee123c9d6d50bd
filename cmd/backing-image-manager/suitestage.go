package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/rehearse"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/spf13/cobra"
)

// stage is where one scenario is played.
type stage struct {
	suite    *suite
	ctx      context.Context // of the run: testscript has none for its commands
	dir      string
	world    *rehearse.World      // nil before there is a configuration
	taken    []configdir.Snapshot // the configurations so far
	declared schema.Result        // by the last of them
	drained  map[string]bool      // what of it is to be evicted besides: NODE, NODE/DISK
	forgot   int                  // how many of the actions so far are not remembered
	out, err io.Writer
}

type stageKey struct{}

// begin makes the world of the scenario's configuration.
func (st *stage) begin() error {
	snapshot, err := configdir.Read(filepath.Join(st.dir, configFolder))
	if err != nil {
		return err
	}
	r := st.suite.load(st.ctx, snapshot)
	if len(r.Errors) > 0 {
		return mistaken(configFolder, r)
	}
	if err := st.take(snapshot, r); err != nil {
		return err
	}
	if st.suite.saved != nil {
		st.world.Saved(st.suite.saved)
	}
	return nil
}

// mistaken tells all mistakes of a configuration.
func mistaken(dir string, r schema.Result) error {
	lines := []string{fmt.Sprintf("the configuration has %s", report.Count(len(r.Errors), "mistake"))}
	for _, p := range r.Errors {
		lines = append(lines, "    "+report.ProblemLine(dir, p, ""))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// path is where a file of the scenario is. Files elsewhere are none of its business.
func (st *stage) path(name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%s is not in the scenario's folder: files are named relative to it", name)
	}
	return filepath.Join(st.dir, name), nil
}

// configure gives the nodes the configuration of a folder. One with mistakes is an
// error, unless they are expected: then it is taken as running managers take it.
func (st *stage) configure(dir string, broken bool) error {
	path, err := st.path(dir)
	if err != nil {
		return err
	}
	snapshot, err := configdir.Read(path)
	if err != nil {
		return err
	}
	r := st.suite.load(st.ctx, snapshot)
	switch {
	case len(r.Errors) == 0 && broken:
		return fmt.Errorf("the configuration of %s has no mistake", dir)
	case len(r.Errors) > 0 && !broken:
		return mistaken(dir, r)
	case broken:
		l := schema.NewLoader()
		for _, before := range st.taken {
			l.Load(st.ctx, before)
		}
		r = l.Load(st.ctx, snapshot)
		report.WriteProblems(st.err, dir, r)
	}
	return st.take(snapshot, r)
}

// take gives the nodes a configuration.
func (st *stage) take(snapshot configdir.Snapshot, r schema.Result) error {
	st.taken, st.declared = append(st.taken, snapshot), r
	if st.world != nil {
		return st.world.Configure(st.evicting())
	}
	var err error
	st.world, err = rehearse.New(st.evicting())
	return err
}

// evicting is what is declared, with evictionRequested for what is drained.
func (st *stage) evicting() schema.Result {
	r := st.declared
	r.Config.Nodes = maps.Clone(r.Config.Nodes)
	for _, name := range slices.Sorted(maps.Keys(st.drained)) {
		node, diskName, one := strings.Cut(name, "/")
		n, ok := r.Config.Nodes[node]
		if !ok {
			continue // it has left the configuration since
		}
		if d, ok := n.Disks[diskName]; ok && one {
			d.EvictionRequested = true
			n.Disks = maps.Clone(n.Disks)
			n.Disks[diskName] = d
		}
		n.EvictionRequested = n.EvictionRequested || !one
		r.Config.Nodes[node] = n
		if r.Digest != "" {
			r.Digest += "+" + name
		}
	}
	return r
}

// copyAt reads the arguments IMAGE NODE/DISK.
func (st *stage) copyAt(args []string) (reconcile.Key, error) {
	id, err := st.world.Image(args[0])
	if err != nil {
		return reconcile.Key{}, err
	}
	ref, err := st.world.Disk(args[1])
	return reconcile.Key{Disk: ref, ID: id}, err
}

// remembered are the actions since the last forget.
func (st *stage) remembered() []rehearse.Done { return st.world.Done()[st.forgot:] }

// whenWritten is a standard output. Only asking testscript for it makes a command one that
// prints, and what another one printed before is forgotten then.
type whenWritten func() io.Writer

// Write prints.
func (w whenWritten) Write(p []byte) (int, error) { return w().Write(p) }

// finding is whether what a command asks for is so.
type finding struct {
	so bool
	is string // what is, in words that fit either way
	// about is the image to explain if it is not so.
	about disk.ID
}

// stageCommands are the commands of scenarios as testscript calls them.
func stageCommands() map[string]func(*testscript.TestScript, bool, []string) {
	commands := map[string]func(*testscript.TestScript, bool, []string){}
	for _, one := range allCommands() {
		commands[one.name()] = func(ts *testscript.TestScript, neg bool, args []string) {
			st := ts.Value(stageKey{}).(*stage)
			st.out, st.err = whenWritten(ts.Stdout), whenWritten(ts.Stderr)
			ts.Check(one.call(st, neg, args))
		}
	}
	return commands
}

func (c command) call(st *stage, neg bool, args []string) error {
	if st.world == nil && c.name() != "config" {
		return errors.New("there is no configuration: add files below config/, give --config-dir, or begin with: config DIR")
	}
	in, err := c.parse(args)
	switch {
	case err != nil:
		return err
	case c.act != nil && neg && !c.negated:
		return fmt.Errorf("! %s means nothing", c.name())
	case c.act != nil:
		in.neg = neg
		return c.act(st, in)
	}
	v, err := c.look(st, in)
	if err != nil || v.so != neg {
		return err
	}
	if v.about.Name != "" {
		v.is += "\n    " + strings.Join(st.world.Explain(v.about), "\n    ")
	}
	return errors.New(v.is)
}

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

func converge(st *stage, in input) error {
	limit := time.Duration(0)
	if text, given := in.option("for"); given {
		var err error
		if limit, err = schema.ParseInterval(text); err != nil {
			return err
		}
	}
	done, err := st.world.Converge(st.ctx, limit)
	failures := 0
	for _, line := range report.Align(doneRows(st.world, done)) {
		fmt.Fprintln(st.out, line)
	}
	for _, d := range done {
		if d.Err != nil {
			failures++
		}
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(st.out, "%s, %d failed. %s\n", report.Count(len(done), "action"), failures, report.PlanSummary(st.world.Plan()))
	return nil
}

// doneRows are when, what, of which image, where to, and how it came out.
func doneRows(w *rehearse.World, done []rehearse.Done) [][]string {
	var rows [][]string
	for _, d := range done {
		text := report.OneLine(d.Reason)
		if d.From != "" {
			text += "; from " + d.From
		}
		if d.Err != nil {
			text = "failed: " + report.OneLine(d.Err.Error())
		}
		rows = append(rows, []string{fmt.Sprintf("+%v", w.Since(d.At)), string(d.Kind), d.Image, d.Key().Disk.String(), text})
	}
	return slices.Clip(rows)
}

// borrowed are the commands of testscript that a scenario may have, and which of their
// arguments are files. The others run programs, or lead out of the scenario's folder; as
// testscript has them whatever it is told, scenarios are looked through before.
var borrowed = map[string]func(args []word) []word{
	"cmp":     everyArg,
	"cmpenv":  everyArg,
	"cp":      everyArg,
	"env":     noArg,
	"exists":  everyArg,
	"grep":    lastArg,
	"mkdir":   everyArg,
	"mv":      everyArg,
	"rm":      everyArg,
	"skip":    noArg,
	"stderr":  noArg,
	"stdout":  noArg,
	"stop":    noArg,
	"unquote": everyArg,
}

// unwanted are the others.
var unwanted = []string{"cd", "chmod", "exec", "kill", "stdin", "symlink", "ttyin", "ttyout", "unix2dos", "wait"}

func borrowedNames() []string { return slices.Sorted(maps.Keys(borrowed)) }

func everyArg(args []word) []word { return args }

func noArg([]word) []word { return nil }

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
	files, isBorrowed := borrowed[name.text]
	switch {
	case name.expands:
		return fmt.Errorf("a command is no variable: %s", name.text)
	case strings.HasPrefix(name.text, "["):
		return fmt.Errorf("conditions such as %s are not for scenarios: they are the same everywhere", name.text)
	case strings.HasPrefix(name.text, "--"):
		return fmt.Errorf(`%s is no command; a file begins with a line "-- NAME --"`, name.text)
	case stageCommand(name.text) != nil:
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
	for _, known := range slices.Concat(stageNames(), borrowedNames()) {
		near.AddCommand(&cobra.Command{Use: known, Run: func(*cobra.Command, []string) {}})
	}
	if rest, ok := strings.CutPrefix(name, "!"); ok {
		return fmt.Errorf("unknown command %q: write \"! %s\"", name, rest)
	}
	return fmt.Errorf("unknown command %q%s", name, didYouMean(near.SuggestionsFor(name)))
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
