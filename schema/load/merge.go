package load

import (
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// merger combines the definitions of all files into one configuration.
type merger struct {
	errors    []document.Problem
	manifests []schema.Manifest
	skipped   []schema.Skipped
	emptied   []string // files that contain nothing
	active    bool     // an earlier configuration is in force

	current    map[key]*definition      // the definitions in force: valid now, or the last valid ones
	broken     map[key]document.Problem // the first problem of each key whose present definition is not in force
	declared   map[key][]*definition    // all present definitions
	references map[key][]*definition    // sorted by file and line
	titles     map[key]string           // that references give the images

	withheld map[string]bool // images of which the cluster has no file

	unread map[string]document.Problem // the first problem of each file that has problems

	settings      schema.Settings
	placesUnknown bool // settings or nodes are broken, and were never valid
	fileUnknown   bool // a file has problems, and was never without them

	suggestions document.Suggestions
}

// merge combines the definitions. Definitions that are broken now keep their last valid
// content.
func (l *Loader) merge(files []*parsedFile, d definitions) *merger {
	m := &merger{
		active: l.last.active, current: map[key]*definition{}, broken: map[key]document.Problem{}, declared: map[key][]*definition{},
		references: map[key][]*definition{}, titles: map[key]string{}, withheld: map[string]bool{}, unread: map[string]document.Problem{},
	}
	m.manifests, m.skipped = documentsOf(files, d)
	for _, s := range m.skipped {
		m.withheld[s.Image] = m.withheld[s.Image] || s.Withheld
	}
	for _, f := range files {
		m.errors = append(append(m.errors, f.Problems...), d.resolved[&f.File].Problems...)
		if len(f.Problems) > 0 {
			m.unread[f.Path] = f.Problems[0]
			m.fileUnknown = m.fileUnknown || !l.last.files[f.Path]
		}
		if f.empty {
			m.emptied = append(m.emptied, f.Path)
		}
	}
	for _, def := range d.all {
		m.declared[def.key] = append(m.declared[def.key], def)
	}
	for _, ref := range d.references {
		m.references[ref.key] = append(m.references[ref.key], ref)
	}
	for _, refs := range m.references {
		slices.SortStableFunc(refs, func(a, b *definition) int { return a.pos.Compare(b.pos) })
	}
	for k, defined := range m.declared {
		m.apply(k, defined)
	}
	m.defineByReference(l, false)
	m.keepUnread(l.last.definitions, files)
	m.defineByReference(l, true)
	for _, s := range []section{settingsSection, nodesSection, imagesSection} {
		m.checkSection(s, l)
	}
	m.checkReferences()
	return m
}

// apply puts the definition of key k in force if it is the only one, and if its own validation found
// no problem.
func (m *merger) apply(k key, defined []*definition) {
	first := defined[0]
	for _, d := range defined[1:] {
		m.reject(k, d.duplicate(first))
	}
	for _, d := range defined {
		for _, p := range d.allProblems() {
			m.reject(k, p)
		}
		if _, broken := m.broken[k]; !broken && d.unread != nil {
			m.broken[k] = *d.unread
		}
	}
	if _, broken := m.broken[k]; !broken {
		m.current[k] = first
	}
}

// reject records a problem because of which the present definition of key k is not in force.
func (m *merger) reject(k key, p document.Problem) {
	m.errors = append(m.errors, p)
	if first, ok := m.broken[k]; !ok || p.Compare(first) < 0 {
		m.broken[k] = p
	}
	delete(m.current, k)
}

// keepUnread keeps last valid definitions that no readable file has, but that may still exist.
// These are the definitions of a file that cannot be read now. If a file was never readable,
// keepUnread keeps all definitions, because any may have been moved there.
func (m *merger) keepUnread(lastGood map[key]*definition, files []*parsedFile) {
	var anywhere *document.Problem
	if m.fileUnknown {
		i := slices.IndexFunc(files, func(f *parsedFile) bool { return len(f.Problems) > 0 })
		anywhere = &files[i].Problems[0]
	}
	for k, d := range lastGood {
		if m.declared[k] != nil {
			continue
		}
		reason, ok := m.unread[d.file]
		if !ok && anywhere != nil {
			reason, ok = *anywhere, true
		}
		if ok {
			m.current[k], m.broken[k] = d, reason
		}
	}
}

// checkSection checks what depends on other definitions, and then replaces each broken
// definition of the section by its last valid version.
func (m *merger) checkSection(s section, l *Loader) {
	switch s {
	case nodesSection:
		m.checkAddresses()
	case imagesSection:
		m.checkImages()
	}
	for k := range m.broken {
		if k.section != s || m.current[k] != nil {
			continue
		}
		if d := l.last.definitions[k]; d != nil {
			m.current[k] = d.movedTo(m.declared[k][0])
		} else if s != imagesSection {
			m.placesUnknown = true
		}
	}
	switch s {
	case settingsSection:
		m.settings = l.settings(m.all(settingsSection))
	case nodesSection:
		report, notify := m.checkDestination(l, "report"), m.checkDestination(l, "notify")
		if report || notify {
			m.settings = l.settings(m.all(settingsSection))
		}
	case imagesSection:
		m.dropLoopback()
	}
}

// movedTo returns the last valid definition d with the file of its broken successor. So the definition is removed only
// when that file no longer contains it.
func (d *definition) movedTo(successor *definition) *definition {
	moved := *d
	moved.file, moved.declaration = successor.file, successor.declaration
	return &moved
}

// all returns the definitions of a section that are in force, in the order of their names.
func (m *merger) all(s section) []*definition {
	var all []*definition
	for k, d := range m.current {
		if k.section == s {
			all = append(all, d)
		}
	}
	slices.SortFunc(all, func(a, b *definition) int { return strings.Compare(a.name, b.name) })
	return all
}

// stale reports whether the last valid definition is in force, because the present definition
// is broken.
func (m *merger) stale(d *definition) bool {
	_, broken := m.broken[d.key]
	return broken
}

// defineByReference makes references define the images that no other document defines. If
// afterUnread is false, it skips an image whose last valid definition was not a reference,
// or was in a file that cannot be read now: keepUnread must first decide whether that
// definition stays in force. If afterUnread is true, it handles only the skipped images.
func (m *merger) defineByReference(l *Loader, afterUnread bool) {
	for k, refs := range m.references {
		last := l.last.definitions[k]
		wait := false
		if last != nil {
			_, unread := m.unread[last.file]
			wait = !last.isReference() || unread
		}
		if len(m.declared[k]) > 0 || m.current[k] != nil || wait != afterUnread || m.withheld[k.name] {
			continue
		}
		if d := definingReference(refs, last); d != nil {
			m.declared[k] = []*definition{d}
			m.apply(k, m.declared[k])
		}
	}
}

// definingReference returns the reference that defines the image, or nil. Only references that have more than a name count.
// It returns the first one with a checksum, by file and line, so that a declared checksum always applies. Without any
// checksum, it returns the first one. A broken reference counts like one with a checksum if no usable one precedes it, or if
// it is in the file of the last valid definition.
func definingReference(refs []*definition, last *definition) (first *definition) {
	for _, d := range refs {
		broken := len(d.allProblems()) > 0
		switch {
		case !broken && !d.checked.conversion.Reference.Defines():
		case broken && (first == nil || last != nil && d.file == last.file),
			!broken && d.checked.conversion.Reference.HasChecksum():
			return d
		case first == nil:
			first = d
		}
	}
	return first
}

// isReference reports whether the definition is a manifest that only refers to an image.
func (d *definition) isReference() bool { return d.kind != nil && d.kind.Reference }

// checkReferences compares the references with the definitions in force. Their problems
// affect no image.
func (m *merger) checkReferences() {
	images := names(m.all(imagesSection))
	for k, refs := range m.references {
		for _, d := range refs {
			if slices.Contains(m.declared[k], d) {
				continue
			}
			problems := d.allProblems()
			if len(problems) == 0 {
				problems = m.mismatches(d, images)
			}
			m.errors = append(m.errors, problems...)
			if image := d.checked.image; len(problems) == 0 && image != nil && m.titles[k] == "" {
				m.titles[k] = image.Title
			}
		}
	}
}

// mismatches returns how reference d differs from the image in force. The argument images has the names to suggest.
func (m *merger) mismatches(d *definition, images []string) []document.Problem {
	r, image := d.checked.conversion.Reference, m.current[d.key]
	switch {
	case image == nil && (m.declared[d.key] != nil || m.fileUnknown || m.withheld[d.name]):
		return nil // its definition is broken or withheld, or may be in a file that cannot be read
	case image == nil:
		return []document.Problem{d.place(r.Undeclared(d.kind.ImagePath, d.name, m.suggestions.DidYouMean(d.name, images)))}
	case m.stale(image):
		return nil
	}
	p, differs := r.Mismatch(d.name, image.native(), image.checked.image.Checksum)
	if !differs {
		return nil
	}
	p = d.place(p)
	p.Also = image.pos
	return []document.Problem{p}
}

// names returns the names of definitions.
func names(all []*definition) []string {
	var names []string
	for _, d := range all {
		names = append(names, d.name)
	}
	return names
}
