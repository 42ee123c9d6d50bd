package schema

import (
	"cmp"
	"context"
	"crypto/sha256"
	"path"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

// Loader turns snapshots of a config directory into configurations. It
// remembers what was last said, and what was checked already, so that a reload
// costs what changed. It is for one goroutine.
type Loader struct {
	shapes   shapes
	contents map[contentKey]*content
	verdicts map[verdictKey]*verdict
	said     map[key]*thing  // the last valid definition of everything
	known    map[string]bool // origins that were once free of problems
	acted    bool            // some result allowed more than observing
	last     Config          // of the last result that allowed more than observing
}

type contentKey struct {
	origin string
	sum    [sha256.Size]byte
}

type verdictKey struct {
	key
	form *form
	sum  [sha256.Size]byte
}

// NewLoader returns a Loader that knows nothing yet.
func NewLoader() *Loader { return &Loader{shapes: readShapes()} }

// Load reads a snapshot. It does not fail: what is wrong is in the result. When
// ctx ends before it does, the result allows nothing and the Loader forgets
// nothing.
func (l *Loader) Load(ctx context.Context, s configdir.Snapshot) Result {
	r := l.load(ctx, s)
	r.Revision = s.Revision
	return r
}

func (l *Loader) load(ctx context.Context, s configdir.Snapshot) Result {
	contents := l.emptied(l.read(ctx, s))
	if err := l.judge(ctx, contents); err != nil {
		return Result{Config: l.last, Errors: []document.Problem{{Message: "loading was interrupted: " + err.Error()}}}
	}
	if nothing(contents) {
		return l.nothingDeclared(contents)
	}
	a := l.assemble(contents)
	r := a.result()
	if r.May != ObserveOnly {
		l.acted, l.last = true, r.Config
	}
	l.said, l.known = a.holds, l.knownOf(contents)
	return r
}

// read parses the files that are not as they were the last time.
func (l *Loader) read(ctx context.Context, s configdir.Snapshot) []*content {
	kept := make(map[contentKey]*content, len(s.Files))
	contents := make([]*content, 0, len(s.Files))
	for _, f := range s.Files {
		if path.Ext(f.Path) == ".cue" {
			continue
		}
		k := contentKey{f.Path, sha256.Sum256(f.Data)}
		c := l.contents[k]
		if c == nil || f.Err != nil {
			c = read(f)
		}
		if f.Err == nil {
			kept[k] = c
		}
		contents = append(contents, c)
	}
	contents = append(contents, l.readCUE(ctx, s.Files, kept)...)
	l.contents = kept
	return contents
}

// readCUE evaluates the units of .cue files that changed since the last time.
func (l *Loader) readCUE(ctx context.Context, files []configdir.File, kept map[contentKey]*content) []*content {
	var contents []*content
	var changed []*sandbox.Unit
	for _, u := range sandbox.Units(files) {
		k := contentKey{u.Origin, u.Sum()}
		if c := unreadable(u); c != nil {
			contents = append(contents, c)
		} else if c := l.contents[k]; c != nil {
			contents, kept[k] = append(contents, c), c
		} else {
			changed = append(changed, u)
		}
	}
	for i, r := range sandbox.Evaluate(ctx, changed) {
		c := contentOf(changed[i], r)
		contents = append(contents, c)
		if !r.Transient {
			kept[contentKey{changed[i].Origin, changed[i].Sum()}] = c
		}
	}
	return contents
}

// unreadable returns what is wrong with files that cannot be evaluated at all, nil if
// nothing is.
func unreadable(u *sandbox.Unit) *content {
	c := &content{origin: u.Origin}
	for _, f := range u.Files {
		c.readable(f)
	}
	if len(c.problems) == 0 {
		return nil
	}
	return c
}

// emptied tells of files that declared something and have nothing in them now: what writes
// a file and fails leaves it so. What is remembered of the files stays as it is.
func (l *Loader) emptied(contents []*content) []*content {
	declared := map[string]bool{}
	for _, t := range l.said {
		declared[t.origin] = true
	}
	for i, c := range contents {
		if c.empty && declared[c.origin] {
			e := *c
			e.problem(document.Position{File: c.origin}, nil, "is empty, and was not", "remove it, or write \"images: {}\" if that is meant")
			contents[i] = &e
		}
	}
	return contents
}

// judge gives every thing its verdict: an earlier one where it says the same. What
// VolumeSnapshots declare is among the things then.
func (l *Loader) judge(ctx context.Context, contents []*content) error {
	verdicts := make(map[verdictKey]*verdict, len(l.verdicts))
	var classes, things []*thing
	for _, c := range contents {
		for _, class := range c.classes {
			if class.thing != nil {
				classes = append(classes, class.thing)
			}
		}
	}
	err := l.judgeAll(ctx, classes, verdicts)
	if err == nil {
		l.resolve(contents)
		for _, c := range contents {
			things = append(append(things, c.things...), c.claims...)
		}
		err = l.judgeAll(ctx, things, verdicts)
	}
	if err != nil {
		l.contents = nil // their things hold verdicts that nobody gave
		return err
	}
	l.verdicts = verdicts
	return nil
}

func (l *Loader) judgeAll(ctx context.Context, things []*thing, verdicts map[verdictKey]*verdict) error {
	var tasks []task
	for _, t := range things {
		k := verdictKey{t.key, t.form, t.sum}
		if t.verdict == nil {
			t.verdict = cmp.Or(verdicts[k], l.verdicts[k])
		}
		if t.verdict == nil {
			t.verdict = &verdict{}
			tasks = append(tasks, task{t.key, t.form, t.value, t.verdict})
		}
		verdicts[k] = t.verdict
	}
	return l.checkAll(ctx, tasks)
}

// settings puts the settings together that are defined one by one.
func (l *Loader) settings(defined []*thing) Settings {
	all := &document.Value{Kind: document.Map}
	for _, t := range defined {
		all.Fields = append(all.Fields, t.native().Fields...)
	}
	k := verdictKey{key: key{settingsSection, ""}, sum: all.Sum()}
	v := l.verdicts[k]
	if v == nil {
		v = &verdict{}
		l.checkBatch([]task{{key: k.key, value: all, verdict: v}})
		l.verdicts[k] = v
	}
	return *v.settings
}

func nothing(contents []*content) bool {
	return !slices.ContainsFunc(contents, func(c *content) bool { return c.ours || len(c.problems) > 0 })
}

// nothingDeclared is the result of a directory that says nothing at all: a
// mount that failed looks like this, so it is never taken for "no images".
func (l *Loader) nothingDeclared(contents []*content) Result {
	r := Result{Config: l.last, Errors: []document.Problem{{
		Message: "no settings, nodes or images are declared",
		Hint:    "to declare that there are none, write \"images: {}\"",
	}}}
	if len(contents) == 0 {
		r.Errors[0].Hint = "no file ends in .yaml, .yml, .json or .cue"
	}
	if l.acted {
		r.May = NoDeletions
	} else {
		r.Config.Settings = l.settings(nil)
	}
	for _, c := range contents {
		r.Skipped, r.Manifests = append(r.Skipped, c.skipped...), append(r.Manifests, c.manifests...)
	}
	return r
}

func (l *Loader) knownOf(contents []*content) map[string]bool {
	known := map[string]bool{}
	for _, c := range contents {
		if len(c.problems) == 0 || l.known[c.origin] {
			known[c.origin] = true
		}
	}
	return known
}
