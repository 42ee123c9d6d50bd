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

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/rehearse"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// stage is where one scenario is played.
type stage struct {
	suite    *suite
	ctx      context.Context // of the run: testscript has none for its commands
	dir      string
	world    *rehearse.World   // nil before there is a configuration
	taken    []schema.Snapshot // the configurations so far
	declared schema.Result     // by the last of them
	drained  map[string]bool   // what of it is to be evicted besides: NODE, NODE/DISK
	forgot   int               // how many of the actions so far are not remembered
	out, err io.Writer
}

type stageKey struct{}

// begin makes the world of the scenario's configuration.
func (st *stage) begin() error {
	snapshot, err := schema.ReadDir(filepath.Join(st.dir, configFolder))
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
	lines := []string{fmt.Sprintf("the configuration has %s", count(len(r.Errors), "mistake"))}
	for _, p := range r.Errors {
		lines = append(lines, "    "+problemLine(dir, p, ""))
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
	snapshot, err := schema.ReadDir(path)
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
		printProblems(st.err, dir, r)
	}
	return st.take(snapshot, r)
}

// take gives the nodes a configuration.
func (st *stage) take(snapshot schema.Snapshot, r schema.Result) error {
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
