package scenario

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
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// session is where one scenario is played.
type session struct {
	runner    *Runner
	ctx       context.Context // of the run: testscript has none for its commands
	dir       string
	world     *world               // nil before there is a configuration
	applied   []configdir.Snapshot // the configurations so far
	declared  schema.Result        // by the last of them
	drained   map[string]bool      // what of it is to be evicted besides: NODE, NODE/DISK
	forgotten int                  // how many of the actions so far are not remembered
	out, err  io.Writer
}

type sessionKey struct{}

// begin makes the world of the scenario's configuration.
func (st *session) begin() error {
	snapshot, err := configdir.Read(filepath.Join(st.dir, configFolder))
	if err != nil {
		return err
	}
	r := st.runner.load(st.ctx, snapshot)
	if len(r.Errors) > 0 {
		return configError(configFolder, r)
	}
	if err := st.apply(snapshot, r); err != nil {
		return err
	}
	if st.runner.saved != nil {
		st.world.restore(st.runner.saved)
	}
	return nil
}

// configError tells all mistakes of a configuration.
func configError(dir string, r schema.Result) error {
	lines := []string{fmt.Sprintf("the configuration has %s", report.Count(len(r.Errors), "mistake"))}
	for _, p := range r.Errors {
		lines = append(lines, "    "+report.ProblemLine(dir, p, ""))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// path is where a file of the scenario is. Files elsewhere are none of its business.
func (st *session) path(name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%s is not in the scenario's folder: files are named relative to it", name)
	}
	return filepath.Join(st.dir, name), nil
}

// configure gives the nodes the configuration of a folder. One with mistakes is an
// error, unless they are expected: then it is taken as running managers take it.
func (st *session) configure(dir string, broken bool) error {
	path, err := st.path(dir)
	if err != nil {
		return err
	}
	snapshot, err := configdir.Read(path)
	if err != nil {
		return err
	}
	r := st.runner.load(st.ctx, snapshot)
	switch {
	case len(r.Errors) == 0 && broken:
		return fmt.Errorf("the configuration of %s has no mistake", dir)
	case len(r.Errors) > 0 && !broken:
		return configError(dir, r)
	case broken:
		l := schema.NewLoader()
		for _, before := range st.applied {
			l.Load(st.ctx, before)
		}
		r = l.Load(st.ctx, snapshot)
		report.WriteProblems(st.err, dir, r)
	}
	return st.apply(snapshot, r)
}

// apply gives the nodes a configuration.
func (st *session) apply(snapshot configdir.Snapshot, r schema.Result) error {
	st.applied, st.declared = append(st.applied, snapshot), r
	if st.world != nil {
		return st.world.configure(st.withDrained())
	}
	var err error
	st.world, err = newWorld(st.withDrained())
	return err
}

// withDrained is what is declared, with evictionRequested for what is drained.
func (st *session) withDrained() schema.Result {
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

// parseCopy reads the arguments IMAGE NODE/DISK.
func (st *session) parseCopy(args []string) (plan.CopyRef, error) {
	id, err := st.world.findImage(args[0])
	if err != nil {
		return plan.CopyRef{}, err
	}
	ref, err := st.world.parseDisk(args[1])
	return plan.CopyRef{Disk: ref, ID: id}, err
}

// history are the actions since the last forget.
func (st *session) history() []executed { return st.world.executed()[st.forgotten:] }

// lazyWriter is a standard output. Only asking testscript for it makes a command one that
// prints, and what another one printed before is forgotten then.
type lazyWriter func() io.Writer

// Write prints.
func (w lazyWriter) Write(p []byte) (int, error) { return w().Write(p) }

// checkResult is whether what a command asks for is so.
type checkResult struct {
	ok  bool
	got string // what is, in words that fit either way
	// image is the image to explain if it is not so.
	image disk.ID
}

// scriptCommands are the commands of scenarios as testscript calls them.
func scriptCommands() map[string]func(*testscript.TestScript, bool, []string) {
	commands := map[string]func(*testscript.TestScript, bool, []string){}
	for _, one := range allCommands() {
		commands[one.name()] = func(ts *testscript.TestScript, neg bool, args []string) {
			st := ts.Value(sessionKey{}).(*session)
			st.out, st.err = lazyWriter(ts.Stdout), lazyWriter(ts.Stderr)
			ts.Check(one.run(st, neg, args))
		}
	}
	return commands
}

func (c command) run(st *session, neg bool, args []string) error {
	if st.world == nil && c.name() != "config" {
		return errors.New("there is no configuration: add files below config/, give --config-dir, or begin with: config DIR")
	}
	in, err := c.parse(args)
	switch {
	case err != nil:
		return err
	case c.do != nil && neg && !c.negated:
		return fmt.Errorf("! %s means nothing", c.name())
	case c.do != nil:
		in.neg = neg
		return c.do(st, in)
	}
	v, err := c.check(st, in)
	if err != nil || v.ok != neg {
		return err
	}
	if v.image.Name != "" {
		v.got += "\n    " + strings.Join(st.world.explain(v.image), "\n    ")
	}
	return errors.New(v.got)
}

// command is one that only scenarios have.
type command struct {
	synopsis string
	help     string
	minArgs  int      // arguments that are neither options nor words
	maxArgs  int      // of these; -1: any number
	options  []string // NAME= with a value
	words    []string // that may be there, in any order
	negated  bool     // act may be negated
	// One of these does it.
	do    func(*session, input) error
	check func(*session, input) (checkResult, error)
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
		case len(in.args) < c.minArgs:
			in.args = append(in.args, arg)
		case isOption && slices.Contains(c.options, name):
			in.options[name] = append(in.options[name], value)
		case slices.Contains(c.words, arg):
			in.words = append(in.words, arg)
		case c.maxArgs < 0 || len(in.args) < c.maxArgs:
			in.args = append(in.args, arg)
		default:
			return in, fmt.Errorf("%s: %q is not understood; it is: %s", c.name(), arg, c.synopsis)
		}
	}
	if len(in.args) < c.minArgs {
		return in, fmt.Errorf("%s: something is missing; it is: %s", c.name(), c.synopsis)
	}
	return in, nil
}

func allCommands() []command { return slices.Concat(mutatingCommands, assertCommands) }

// findCommand is the command of that name, nil if scenarios have none.
func findCommand(name string) *command {
	for _, c := range allCommands() {
		if c.name() == name {
			return &c
		}
	}
	return nil
}

func commandNames() []string {
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

func converge(st *session, in input) error {
	limit := time.Duration(0)
	if text, given := in.option("for"); given {
		var err error
		if limit, err = schema.ParseInterval(text); err != nil {
			return err
		}
	}
	done, err := st.world.converge(st.ctx, limit)
	failures := 0
	for _, line := range report.Align(historyRows(st.world, done)) {
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
	fmt.Fprintf(st.out, "%s, %d failed. %s\n", report.Count(len(done), "action"), failures, report.PlanSummary(st.world.plan()))
	return nil
}

// historyRows are when, what, of which image, where to, and how it came out.
func historyRows(w *world, done []executed) [][]string {
	var rows [][]string
	for _, d := range done {
		text := report.OneLine(d.Reason)
		if d.From != (plan.CopyRef{}) {
			text += "; from " + d.From.String()
		}
		if d.Err != nil {
			text = "failed: " + report.OneLine(d.Err.Error())
		}
		rows = append(rows, []string{fmt.Sprintf("+%v", w.sinceStart(d.At)), string(d.Op), d.Image, d.CopyRef().Disk.String(), text})
	}
	return slices.Clip(rows)
}

func MutatingSynopses() string { return synopses(mutatingCommands) }

func AssertSynopses() string { return synopses(assertCommands) }

func BuiltinNames() string { return strings.Join(builtinCommandNames(), " ") }
