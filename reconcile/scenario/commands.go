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

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// session is one run of a scenario.
type session struct {
	runner    *Runner
	ctx       context.Context // testscript passes no context to its commands
	dir       string
	world     *world               // nil before there is a configuration
	applied   []configdir.Snapshot // all configurations until now
	declared  load.Result          // of the last configuration
	drained   map[string]bool      // NODE and NODE/DISK with an eviction request of the scenario
	forgotten int                  // length of the history at the last forget
	out, err  io.Writer
}

type sessionKey struct{}

// begin creates the cluster of the configuration.
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
	if st.runner.States != nil {
		st.world.restore(st.runner.States)
	}
	return nil
}

// configError returns all errors of a configuration.
func configError(dir string, r load.Result) error {
	lines := []string{fmt.Sprintf("the configuration has %s", report.Count(len(r.Errors), "error"))}
	for _, p := range r.Errors {
		lines = append(lines, "    "+report.ProblemLine(dir, p, ""))
	}
	return errors.New(strings.Join(lines, "\n"))
}

// path returns the path of a file of the scenario.
func (st *session) path(name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", fmt.Errorf("%s is not in the scenario's folder: use a relative path", name)
	}
	return filepath.Join(st.dir, name), nil
}

// configure applies the configuration in a folder of the scenario. If invalid is true, the
// configuration must have errors. Then the managers apply it like running managers do, with the
// last valid declarations of earlier configurations.
func (st *session) configure(dir string, invalid bool) error {
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
	case len(r.Errors) == 0 && invalid:
		return fmt.Errorf("the configuration in %s has no errors: remove the ! before config", dir)
	case len(r.Errors) > 0 && !invalid:
		return configError(dir, r)
	case invalid:
		l := load.NewLoader()
		for _, before := range st.applied {
			l.Load(st.ctx, before)
		}
		r = l.Load(st.ctx, snapshot)
		report.WriteProblems(st.err, dir, r)
	}
	return st.apply(snapshot, r)
}

// apply changes the configuration of all nodes.
func (st *session) apply(snapshot configdir.Snapshot, r load.Result) error {
	st.applied, st.declared = append(st.applied, snapshot), r
	if st.world != nil {
		return st.world.configure(st.withDrained())
	}
	var err error
	st.world, err = newWorld(st.withDrained())
	return err
}

// withDrained returns the configuration with the eviction requests of the scenario.
func (st *session) withDrained() load.Result {
	r := st.declared
	r.Config.Nodes = maps.Clone(r.Config.Nodes)
	for _, name := range slices.Sorted(maps.Keys(st.drained)) {
		node, diskName, isDisk := strings.Cut(name, "/")
		n, ok := r.Config.Nodes[node]
		if !ok {
			continue // it is no longer declared
		}
		if d, ok := n.Disks[diskName]; ok && isDisk {
			d.EvictionRequested = true
			n.Disks = maps.Clone(n.Disks)
			n.Disks[diskName] = d
		}
		n.EvictionRequested = n.EvictionRequested || !isDisk
		r.Config.Nodes[node] = n
		if r.Digest != "" {
			r.Digest += "+" + name
		}
	}
	return r
}

// find looks up the required arguments that are IMAGE, NODE/DISK or NODE in the synopsis of a command.
func (st *session) find(c command, in *input) (err error) {
	for i, kind := range strings.Fields(c.synopsis)[1:] {
		switch {
		case err != nil || i == c.minArgs:
			return err
		case kind == "IMAGE":
			in.image, err = st.world.findImage(in.args[i])
		case kind == "NODE/DISK":
			in.disk, err = parseDisk(st.world.base.Config, in.args[i])
		case kind == "NODE":
			err = checkNode(st.world.base.Config, in.args[i])
		}
	}
	return err
}

// history returns the actions since the last forget.
func (st *session) history() []executed { return st.world.history[st.forgotten:] }

// lazyWriter gets the standard output of testscript when the command writes. Getting it clears the
// output of the previous command. A command that prints nothing must not clear that output.
type lazyWriter func() io.Writer

// Write writes to the standard output.
func (w lazyWriter) Write(p []byte) (int, error) { return w().Write(p) }

// checkResult is the result of a condition.
type checkResult struct {
	ok    bool
	got   string   // the facts, for the message in both cases
	image ident.ID // the image to explain if the condition is false; an empty name means no image
}

// scriptCommands returns the commands in the form of testscript.
func scriptCommands() map[string]func(*testscript.TestScript, bool, []string) {
	commands := map[string]func(*testscript.TestScript, bool, []string){}
	for _, c := range allCommands() {
		commands[c.name()] = func(ts *testscript.TestScript, neg bool, args []string) {
			st := ts.Value(sessionKey{}).(*session)
			st.out, st.err = lazyWriter(ts.Stdout), lazyWriter(ts.Stderr)
			ts.Check(c.run(st, neg, args))
		}
	}
	return commands
}

func (c command) run(st *session, neg bool, args []string) error {
	if st.world == nil && c.name() != "config" {
		return errors.New("there is no configuration: add files below config/, use --config-dir, or begin with: config DIR")
	}
	in, err := c.parse(args)
	if err == nil {
		err = st.find(c, &in)
	}
	switch {
	case err != nil:
		return err
	case c.do != nil && neg && !c.negated:
		return fmt.Errorf("%s cannot be negated: remove the ! before it", c.name())
	case c.do != nil:
		in.neg = neg
		return c.do(st, in)
	}
	result, err := c.check(st, in)
	if err != nil || result.ok != neg {
		return err
	}
	if !result.ok && result.image.Name != "" {
		result.got += "\n    " + strings.Join(explain(st.world, result.image), "\n    ")
	}
	return errors.New(result.got)
}

// command is a command of scenarios. Its arguments are positional arguments, then options and
// words in any order.
type command struct {
	synopsis string
	help     string
	minArgs  int      // positional arguments
	maxArgs  int      // -1 means any number
	options  []string // NAME of NAME=VALUE
	words    []string
	negated  bool // do accepts !

	// Either do or check is set.
	do    func(*session, input) error
	check func(*session, input) (checkResult, error)
}

func (c command) name() string {
	name, _, _ := strings.Cut(c.synopsis, " ")
	return name
}

// input are the arguments of a command.
type input struct {
	neg     bool
	args    []string
	image   ident.ID      // the argument IMAGE, if the command has it
	disk    ident.DiskRef // the argument NODE/DISK, if the command has it
	words   []string
	options map[string][]string
}

func (in input) copy() ident.CopyRef { return ident.CopyRef{Disk: in.disk, ID: in.image} }

// option returns the parsed last value of an option. Its last argument is the result without the option.
func option[T any](in input, name string, parse func(string) (T, error), otherwise T) (T, error) {
	all := in.options[name]
	if len(all) == 0 {
		return otherwise, nil
	}
	return parse(all[len(all)-1])
}

func (in input) has(word string) bool { return slices.Contains(in.words, word) }

// one returns which of the mutually exclusive words in of the input has. The first of these words is
// the default.
func (in input) one(of ...string) (string, error) {
	given := slices.DeleteFunc(slices.Clone(in.words), func(w string) bool { return !slices.Contains(of, w) })
	switch len(given) {
	case 0:
		return of[0], nil
	case 1:
		return given[0], nil
	}
	return "", fmt.Errorf("%s are mutually exclusive", strings.Join(given, " and "))
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
			return in, fmt.Errorf("%s: unexpected argument %q; usage: %s", c.name(), arg, c.synopsis)
		}
	}
	if len(in.args) < c.minArgs {
		return in, fmt.Errorf("%s: an argument is missing; usage: %s", c.name(), c.synopsis)
	}
	return in, nil
}

func allCommands() []command { return slices.Concat(mutatingCommands, assertCommands) }

// findCommand returns the command with a name, or nil.
func findCommand(name string) *command {
	for _, c := range allCommands() {
		if c.name() == name {
			return &c
		}
	}
	return nil
}

// synopses returns the commands for the help.
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

// MutatingSynopses returns the help of the commands that change the cluster.
func MutatingSynopses() string { return synopses(mutatingCommands) }

// AssertSynopses returns the help of the commands that print or check.
func AssertSynopses() string { return synopses(assertCommands) }

// BuiltinNames returns the names of the commands of testscript that scenarios may use.
func BuiltinNames() string { return strings.Join(slices.Sorted(maps.Keys(builtins)), " ") }
