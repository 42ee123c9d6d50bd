package load

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
	"github.com/seed-26586806/backing-image-manager/schema/sandbox"
)

// Loader turns snapshots of a config directory into configurations. It keeps the last valid
// definitions and the results of earlier validations, so that a reload evaluates only the files and
// definitions that changed. It is not safe for concurrent use.
type Loader struct {
	files   map[fileKey]*parsedFile
	checked map[checkKey]*checked
	last    *lastValid // of the last load, or of the Result of ContinueFrom
	// Tests set other limits.
	maxPairs, maxCopies int
	stalled             time.Duration // time on the clock after which the children that evaluate .cue files are ended
}

// lastValid is what a load keeps for the next loads. It does not change.
type lastValid struct {
	definitions map[key]*definition // the last valid definition of each key
	files       map[string]bool     // files that had no problems at some load
	active      bool                // some result allowed more than observing
	config      schema.Config       // of the last result that allowed more than observing
}

// fileKey identifies a file with a certain content.
type fileKey struct {
	file string
	sum  [sha256.Size]byte
}

// checkKey identifies a validation. The result of the validation depends only on these fields.
type checkKey struct {
	key
	kind *manifest.Kind
	sum  [sha256.Size]byte
}

// NewLoader returns a Loader that has loaded nothing yet.
func NewLoader() *Loader {
	l := &Loader{maxPairs: maxPairs, maxCopies: maxCopies, stalled: 4 * evaluationTime}
	l.ContinueFrom(Result{})
	return l
}

// ContinueFrom makes the next Load keep the last valid definitions of result r, and not those of the last load. The caller
// uses it if the last result was not applied. Then r is the result that is still in force, or the zero Result.
func (l *Loader) ContinueFrom(r Result) {
	if l.last = r.last; l.last == nil {
		l.last = &lastValid{config: schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}}}
	}
}

// Load reads a snapshot. It returns no error: all problems are in the Result. If ctx ends before the
// load is complete, the Result allows no action, and the Loader keeps the definitions of the last load.
//
// Load takes at most about half a minute. Each file or definition that it could not finish in this
// time gets a problem, and Result.Unfinished is set. The next Load of the same files continues.
func (l *Loader) Load(ctx context.Context, s configdir.Snapshot) Result {
	revision := s.Revision
	r := l.load(ctx, s.Files) // the content of the files is garbage as soon as they are parsed
	r.Revision, r.last = revision, l.last
	return r
}

func (l *Loader) load(ctx context.Context, all []configdir.File) Result {
	files, evaluated, err := l.parseFiles(ctx, all)
	if err != nil {
		return l.interrupted(err)
	}
	files = l.markEmptied(files)
	definitions, err := l.validateFiles(ctx, files, processorTime()+loadTime-evaluated)
	if err != nil {
		return l.interrupted(err)
	}
	accepted := slices.ContainsFunc(files, func(f *parsedFile) bool { return f.accepted || len(f.Problems) > 0 })
	if !accepted && len(definitions.all) == 0 {
		return l.nothingDeclared(files, definitions)
	}
	m := l.merge(files, definitions)
	r := m.result()
	if images, disks := len(r.Config.Images), countDisks(r.Config); images*disks > l.maxPairs {
		return l.tooMany(fmt.Sprintf("%s images and %s disks are declared: their product is more than %s", grouped(images), grouped(disks), grouped(l.maxPairs)))
	}
	if n := desiredCopies(r.Config); n > l.maxCopies {
		return l.tooMany(fmt.Sprintf("all images together have %s desired copies: more than %s", grouped(n), grouped(l.maxCopies)))
	}
	r.Unfinished = slices.ContainsFunc(files, func(f *parsedFile) bool { return f.transient }) || definitions.unfinished
	kept := &lastValid{definitions: m.current, files: l.validFiles(files), active: l.last.active, config: l.last.config}
	if r.Allowed != schema.ObserveOnly {
		kept.active, kept.config = true, r.Config
	}
	l.last = kept
	return r
}

func (l *Loader) interrupted(err error) Result {
	return Result{Loaded: schema.Loaded{Config: l.last.config}, Errors: []document.Problem{{Message: "loading was interrupted: " + err.Error()}}}
}

// parseFiles parses the files that changed since the last load. It parses the files with the fewest
// values first, so that a file that costs too much does not use up the limit of the others. It also returns the
// processor time that the evaluation of .cue files took.
func (l *Loader) parseFiles(ctx context.Context, all []configdir.File) ([]*parsedFile, time.Duration, error) {
	weights := make([]int, len(all))
	var byWeight []int // the indexes of YAML and JSON files
	for i, f := range all {
		if path.Ext(f.Path) != ".cue" {
			weights[i], byWeight = document.Weight(f.Data), append(byWeight, i)
		}
	}
	slices.SortStableFunc(byWeight, func(i, j int) int { return cmp.Compare(weights[i], weights[j]) })
	left, searched := directoryLimit, 0
	kept, parsed := make(map[fileKey]*parsedFile, len(all)), make([]*parsedFile, len(all))
	for _, i := range byWeight {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		k := fileKey{all[i].Path, sha256.Sum256(all[i].Data)}
		p := l.files[k]
		switch unparsed := (&parsedFile{File: manifest.File{Path: all[i].Path}, cost: cost{valueCost: weights[i]}}); {
		case p != nil && all[i].Err == nil:
		case weights[i] > maxFileValues:
			p = unparsed.rejected(valueCost)
		case weights[i] > left[valueCost]:
			p = unparsed
		default:
			p = parse(all[i], weights[i], &searched)
		}
		if exhausted := left.take(p.cost); exhausted >= 0 {
			p = p.surplus(exhausted)
		} else if all[i].Err == nil {
			kept[k] = p
		}
		parsed[i] = p
	}
	files := slices.DeleteFunc(parsed, func(p *parsedFile) bool { return p == nil })
	units, used := l.evaluateFiles(ctx, all, kept, &left)
	l.files = kept
	return append(files, units...), used, ctx.Err()
}

// evaluateFiles evaluates the units of .cue files that changed since the last load. It adds to kept the
// results that the next load can use again.
func (l *Loader) evaluateFiles(ctx context.Context, all []configdir.File, kept map[fileKey]*parsedFile, left *cost) (files []*parsedFile, used time.Duration) {
	limited, cancel := context.WithTimeout(ctx, l.stalled)
	defer cancel()
	var changed []*sandbox.Unit
	add := func(k fileKey, p *parsedFile) {
		if exhausted := left.take(p.cost); exhausted >= 0 {
			p = p.surplus(exhausted)
		} else if !p.transient {
			kept[k] = p
		}
		files = append(files, p)
	}
	directory := sandbox.NewDirectory(all)
	for _, u := range directory.Units {
		k := fileKey{u.Origin, directory.Sum}
		if p := unreadable(u); p != nil {
			files = append(files, p)
		} else if p := l.files[k]; p != nil {
			add(k, p)
		} else {
			changed = append(changed, u)
		}
	}
	used = sandbox.Evaluate(limited, directory.Files, changed, sandbox.Limits{Values: maxUnitValues, Text: maxUnitText, Time: evaluationTime}, func(i int, r sandbox.Result) {
		add(fileKey{changed[i].Origin, directory.Sum}, fromCUE(changed[i], r))
	})
	return files, used
}

// unreadable returns a parsedFile with problems if a file of the unit cannot be parsed at
// all. Otherwise it returns nil.
func unreadable(u *sandbox.Unit) *parsedFile {
	p := &parsedFile{File: manifest.File{Path: u.Origin}}
	for _, f := range u.Files {
		p.readable(f)
	}
	if len(p.Problems) == 0 {
		return nil
	}
	return p
}

// markEmptied adds a problem to each file that had declarations at the last load and is empty now: a
// program that fails while it writes a file may leave the file empty. markEmptied does not change the
// files that the Loader keeps.
func (l *Loader) markEmptied(files []*parsedFile) []*parsedFile {
	declared := map[string]bool{}
	for _, d := range l.last.definitions {
		declared[d.file] = true
	}
	for i, f := range files {
		if f.empty && declared[f.Path] {
			emptied := *f
			emptied.AddProblem(document.Position{File: f.Path}, nil, "is empty, but had declarations when it was last read", "remove it, or write \"images: {}\"")
			files[i] = &emptied
		}
	}
	return files
}

// definitions are the definitions of all files.
type definitions struct {
	all        []*definition
	references []*definition // each defines its image only if no other definition does
	resolved   map[*manifest.File]*manifest.File
	unfinished bool // some definitions were not validated before the time limit
}

// validateFiles validates all definitions. Definitions that did not change keep the result
// of their last validation.
func (l *Loader) validateFiles(ctx context.Context, files []*parsedFile, until time.Duration) (definitions, error) {
	now := make(map[checkKey]*checked, len(l.checked))
	d := definitions{}
	manifests := make([]*manifest.File, 0, len(files))
	for _, f := range files {
		manifests = append(manifests, &f.File)
	}
	d.resolved = manifest.Resolve(manifests, func(image string) bool {
		last := l.last.definitions[key{imagesSection, image}]
		return last != nil && last.kind != nil && last.kind.IsVolumeSnapshot()
	})
	for _, f := range files {
		own := slices.Clone(f.native)
		for _, m := range slices.Concat(f.Definitions, d.resolved[&f.File].Definitions) {
			own = append(own, fromManifest(f.Path, m))
		}
		slices.SortStableFunc(own, func(a, b *definition) int { return a.pos.Compare(b.pos) })
		d.all = append(d.all, own...)
		for _, m := range slices.Concat(f.References, d.resolved[&f.File].References) {
			d.references = append(d.references, fromManifest(f.Path, m))
		}
	}
	if err := l.validate(ctx, slices.Concat(d.all, d.references), now, until); err != nil {
		return d, err
	}
	maps.DeleteFunc(now, func(_ checkKey, c *checked) bool {
		d.unfinished = d.unfinished || c.unfinished
		return c.unfinished
	})
	l.checked = now
	return d, nil
}

func (l *Loader) validate(ctx context.Context, all []*definition, now map[checkKey]*checked, until time.Duration) error {
	var tasks []task
	for _, d := range all {
		k := checkKey{d.key, d.kind, d.sum}
		if d.checked == nil || d.checked.unfinished {
			d.checked = cmp.Or(now[k], l.checked[k])
		}
		if d.checked == nil {
			d.checked = &checked{}
			tasks = append(tasks, task{d.key, d.kind, d.value, d.checked})
		}
		now[k] = d.checked
	}
	err := l.checkAll(ctx, tasks, until)
	if err != nil {
		l.files = nil // the definitions of the parsed files refer to validation results that were never computed
	}
	return err
}

// settings combines the valid definitions of single settings. Other settings have their defaults.
func (l *Loader) settings(defined []*definition) schema.Settings {
	all := &document.Value{Kind: document.Map}
	for _, d := range defined {
		all.Fields = append(all.Fields, d.native().Fields...)
	}
	sp := readSpecs()[sectionDefinitions[settingsSection]]
	values, _ := (&structure{root: sp}).plain(all, sp, nil)
	return *fields{place{decoder: &decoder{value: all}}, sp, values.(map[string]any)}.settings()
}

// nothingDeclared is the result of a directory without any declaration. After a failed mount, a
// directory is empty, too. So an empty directory never means "no images".
func (l *Loader) nothingDeclared(files []*parsedFile, d definitions) Result {
	hint := "to declare that there are no images, write \"images: {}\""
	if len(files) == 0 {
		hint = "check the directory: no file ends in .yaml, .yml, .json or .cue"
	}
	r := l.notApplied(document.Problem{Message: "no settings, nodes or images are declared", Hint: hint})
	r.Manifests, r.Skipped = documentsOf(files, d)
	return r
}

// tooMany is the result of a directory that would cost the nodes too much time or memory.
func (l *Loader) tooMany(message string) Result {
	return l.notApplied(document.Problem{Message: message, Hint: "declare less in one directory: see the limits of the configuration in the operations guide"})
}

// notApplied is the result of a directory that has a problem as a whole. The Result contains the last
// configuration.
func (l *Loader) notApplied(p document.Problem) Result {
	r := Result{Loaded: schema.Loaded{Config: l.last.config}, Errors: []document.Problem{p}}
	if l.last.active {
		r.Allowed = schema.NoDeletions
	} else {
		r.Config.Settings = l.settings(nil)
	}
	return r
}

// documentsOf returns the manifests that were read, and those that were skipped, in the
// order of the files.
func documentsOf(files []*parsedFile, d definitions) (read []schema.Manifest, skipped []schema.Skipped) {
	for _, f := range files {
		more := d.resolved[&f.File]
		read = slices.Concat(read, f.Read, more.Read)
		both := slices.Concat(f.Skipped, more.Skipped)
		slices.SortStableFunc(both, func(a, b schema.Skipped) int { return a.Position.Compare(b.Position) })
		skipped = append(skipped, both...)
	}
	return read, skipped
}

func (l *Loader) validFiles(files []*parsedFile) map[string]bool {
	valid := map[string]bool{}
	for _, f := range files {
		if len(f.Problems) == 0 || l.last.files[f.Path] {
			valid[f.Path] = true
		}
	}
	return valid
}
