package schema

import (
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// assembly puts together what the contents of one snapshot define.
type assembly struct {
	errors    []document.Problem
	manifests []Document
	skipped   []Skipped
	running   bool // an earlier configuration is being acted on

	holds map[key]*thing           // what holds: valid now, or as last said
	wrong map[key]document.Problem // what does not hold as it is now defined
	fresh map[key][]*thing         // everything that is defined now

	claims map[key][]*thing // by file and line

	unread map[string]document.Problem // of the files that cannot be read now, the first one

	encryptions   map[string]Encryption // see encryption
	settings      Settings
	placesUnknown bool // settings or nodes are wrong
	fileUnknown   bool // a file has problems and was never seen without
}

func (l *Loader) assemble(contents []*content) *assembly {
	a := &assembly{
		running: l.acted, holds: map[key]*thing{}, wrong: map[key]document.Problem{}, fresh: map[key][]*thing{},
		encryptions: map[string]Encryption{}, claims: map[key][]*thing{}, unread: map[string]document.Problem{},
	}
	for _, c := range contents {
		a.errors = append(append(a.errors, c.problems...), c.alone...)
		a.manifests = append(a.manifests, c.manifests...)
		a.skipped = append(a.skipped, c.skipped...)
		if len(c.problems) > 0 {
			a.unread[c.origin] = c.problems[0]
		}
		a.fileUnknown = a.fileUnknown || len(c.problems) > 0 && !l.known[c.origin]
		for _, t := range c.things {
			a.fresh[t.key] = append(a.fresh[t.key], t)
		}
		for _, t := range c.claims {
			a.claims[t.key] = append(a.claims[t.key], t)
		}
	}
	for _, claims := range a.claims {
		slices.SortStableFunc(claims, func(x, y *thing) int { return x.pos.Compare(y.pos) })
	}
	for k, defined := range a.fresh {
		a.place(k, defined)
	}
	a.declareClaimed(l, false)
	a.keepUnread(l.said, contents)
	a.declareClaimed(l, true)
	for _, s := range []section{settingsSection, nodesSection, imagesSection} {
		a.checkSection(s, l)
	}
	a.checkClaims()
	return a
}

// place takes a definition that is valid by itself.
func (a *assembly) place(k key, defined []*thing) {
	first := defined[0]
	for _, t := range defined[1:] {
		p := t.whole("is defined twice", "keep one of them")
		p.Also = first.pos
		a.mistake(k, p)
	}
	for _, t := range defined {
		for _, p := range t.allProblems() {
			a.mistake(k, p)
		}
		if _, wrong := a.wrong[k]; !wrong && t.unread != nil {
			a.wrong[k] = *t.unread
		}
	}
	if _, wrong := a.wrong[k]; !wrong {
		a.holds[k] = first
	}
}

func (t *thing) allProblems() []document.Problem {
	if len(t.problems) > 0 {
		return t.problems
	}
	problems := make([]document.Problem, 0, len(t.verdict.faults))
	for _, f := range t.verdict.faults {
		problems = append(problems, t.problem(f))
	}
	return problems
}

// mistake records a problem that keeps k from holding as it is defined.
func (a *assembly) mistake(k key, p document.Problem) {
	a.errors = append(a.errors, p)
	if first, is := a.wrong[k]; !is || p.Compare(first) < 0 {
		a.wrong[k] = p
	}
	delete(a.holds, k)
}

// keepUnread lets what was last said hold where it may still be said, in a file
// that cannot be read now. It may also have moved into a file that is new.
func (a *assembly) keepUnread(said map[key]*thing, contents []*content) {
	var anywhere *document.Problem
	if a.fileUnknown {
		for _, c := range contents {
			if len(c.problems) > 0 {
				anywhere = &c.problems[0]
				break
			}
		}
	}
	for k, t := range said {
		if a.fresh[k] != nil {
			continue
		}
		why, is := a.unread[t.origin]
		if !is && anywhere != nil {
			why, is = *anywhere, true
		}
		if is {
			a.holds[k], a.wrong[k] = t, why
		}
	}
}

// checkSection checks what depends on other definitions, and then lets what was
// last said hold for all that turned out wrong.
func (a *assembly) checkSection(s section, l *Loader) {
	switch s {
	case nodesSection:
		a.checkAddresses()
	case imagesSection:
		a.checkImages()
	}
	for k := range a.wrong {
		if k.section != s || a.holds[k] != nil {
			continue
		}
		if t := l.said[k]; t != nil {
			a.holds[k] = t.saidIn(a.fresh[k][0].origin)
		} else if s != imagesSection {
			a.placesUnknown = true
		}
	}
	switch s {
	case settingsSection:
		a.settings = l.settings(a.of(settingsSection))
	case imagesSection:
		a.dropLoopback()
	}
}

// saidIn is t as if another file had said it last: the one that has to be
// readable for t to be gone.
func (t *thing) saidIn(origin string) *thing {
	u := *t
	u.origin = origin
	return &u
}

// of returns what holds of a section, in the order of the names.
func (a *assembly) of(s section) []*thing {
	var things []*thing
	for k, t := range a.holds {
		if k.section == s {
			things = append(things, t)
		}
	}
	slices.SortFunc(things, func(x, y *thing) int { return strings.Compare(x.name, y.name) })
	return things
}
