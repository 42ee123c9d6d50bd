package edit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// prove sets the new files. It loads the directory with them, and gives up the images without which the configuration
// differs in wanted values only.
func (e *editor) prove(ctx context.Context) error {
	names := slices.Sorted(maps.Keys(e.changes))
	files, err := e.try(ctx, names)
	if err == nil {
		e.result.Files = files
		return ctx.Err()
	}
	// Find out which images cannot be edited.
	for _, name := range names {
		if _, err := e.try(ctx, []string{name}); err != nil {
			e.refuse(name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	names = slices.Sorted(maps.Keys(e.changes))
	if e.result.Files, err = e.try(ctx, names); err != nil {
		for _, name := range names {
			e.refuse(name, err)
		}
	}
	return ctx.Err()
}

// try returns the new files for some images, and an error if anything else changes.
func (e *editor) try(ctx context.Context, names []string) ([]configdir.File, error) {
	if len(names) == 0 {
		return nil, nil
	}
	var changes []Change
	for _, name := range names {
		changes = append(changes, e.changes[name]...)
	}
	files, err := e.apply(changes)
	if err != nil {
		return nil, err
	}
	s := e.snapshot
	s.Files = slices.Clone(s.Files)
	for _, f := range files {
		i := slices.IndexFunc(s.Files, func(old configdir.File) bool { return old.Path == f.Path })
		s.Files[i].Data = f.Data
	}
	after := schema.NewLoader().Load(ctx, s)
	if err := sameProblems(e.before.Errors, after.Errors); err != nil {
		return nil, err
	}
	return files, e.compare(after.Config, names)
}

// sameProblems returns an error if there is a new problem. Columns may change.
func sameProblems(before, after []document.Problem) error {
	for i, p := range after {
		if i >= len(before) || p.File != before[i].File || p.Line != before[i].Line || p.Message != before[i].Message {
			return fmt.Errorf("the configuration would be invalid: %s", p)
		}
	}
	if len(before) != len(after) {
		return errors.New("the configuration would have other problems")
	}
	return nil
}

// compare returns an error unless the configuration differs from that before in the wanted values of the images only.
func (e *editor) compare(after schema.Config, names []string) error {
	before := e.before.Config
	if len(before.Images) != len(after.Images) || !reflect.DeepEqual(before.Settings, after.Settings) || !reflect.DeepEqual(unplaced(before.Nodes), unplaced(after.Nodes)) {
		return errors.New("another part of the configuration would change")
	}
	for name, a := range before.Images {
		b, ok := after.Images[name]
		if slices.Contains(names, name) && ok {
			want := e.wanted[name]
			if d := b.Source.Download; d == nil || d.URL != want.URL || d.Index != want.Index || b.Checksum != want.Checksum {
				return fmt.Errorf("the values of the image %q would not be the wanted ones", name)
			}
			d := *a.Source.Download
			d.URL, d.Index = want.URL, want.Index
			a.Source.Download, a.Checksum, a.ID = &d, want.Checksum, b.ID
		}
		a.Pos, b.Pos = document.Position{}, document.Position{}
		if !ok || !reflect.DeepEqual(a, b) {
			return fmt.Errorf("another value of the image %q would change", name)
		}
	}
	return nil
}

func unplaced(nodes map[string]schema.Node) map[string]schema.Node {
	nodes = maps.Clone(nodes)
	for name, n := range nodes {
		n.Pos = document.Position{}
		nodes[name] = n
	}
	return nodes
}
