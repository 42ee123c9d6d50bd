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
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// prove returns the new files. It gives up each image whose changes would not lead to exactly the wanted values. A check
// loads the whole directory, so prove checks all images at once. If that fails, it checks each half of them.
func (e *editor) prove(ctx context.Context) ([]configdir.File, error) {
	all := slices.Sorted(maps.Keys(e.changes))
	e.refuseFailing(ctx, all)
	left := slices.Sorted(maps.Keys(e.changes))
	if len(left) < len(all) {
		if err := e.check(ctx, left); err != nil { // images that can be edited alone, but not together
			for _, name := range left {
				e.refuse(name, err)
			}
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return e.apply(slices.Sorted(maps.Keys(e.changes)))
}

func (e *editor) refuseFailing(ctx context.Context, names []string) {
	err := e.check(ctx, names)
	switch {
	case err == nil:
	case len(names) == 1:
		e.refuse(names[0], err)
	default:
		e.refuseFailing(ctx, names[:len(names)/2])
		e.refuseFailing(ctx, names[len(names)/2:])
	}
}

// check loads the directory with the changes of some images, and returns an error if anything but the wanted values
// changes. If ctx has ended, it returns nil, so that all checks end soon.
func (e *editor) check(ctx context.Context, names []string) error {
	files, err := e.apply(names)
	if err != nil || len(files) == 0 || ctx.Err() != nil {
		return err
	}
	s := e.snapshot
	s.Files = slices.Clone(s.Files)
	for _, f := range files {
		i := slices.IndexFunc(s.Files, func(old configdir.File) bool { return old.Path == f.Path })
		s.Files[i].Data = f.Data
	}
	e.loader.ContinueFrom(load.Result{})
	after := e.loader.Load(ctx, s)
	if ctx.Err() != nil {
		return nil
	}
	if err := sameProblems(e.before.Errors, after.Errors); err != nil {
		return err
	}
	return e.compare(after.Config, names)
}

// sameProblems returns an error if the problems differ in more than their columns.
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

// compare returns an error if the new configuration differs from the old one in more than the wanted values of the images.
func (e *editor) compare(after schema.Config, names []string) error {
	before := e.before.Config
	if len(before.Images) != len(after.Images) || !reflect.DeepEqual(before.Settings, after.Settings) || !reflect.DeepEqual(unplaced(before.Nodes), unplaced(after.Nodes)) {
		return errors.New("another part of the configuration would change")
	}
	for name, a := range before.Images {
		b, ok := after.Images[name]
		if slices.Contains(names, name) && ok {
			want := e.wanted[name]
			d := *a.Source.Download
			d.URL, d.Index, d.ChecksumURL = want.URL, want.Index, want.ChecksumURL
			if a.Verify != nil {
				v := *a.Verify
				v.SignatureURL = want.SignatureURL
				a.Verify = &v
			}
			a.Source.Download, a.Checksum, a.ID = &d, want.Checksum, b.ID
			if b.Checksum != want.Checksum || !reflect.DeepEqual(a.Verify, b.Verify) || !reflect.DeepEqual(a.Source, b.Source) {
				return fmt.Errorf("the image %q would not get the new values", name)
			}
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
