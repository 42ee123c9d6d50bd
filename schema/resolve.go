package schema

import (
	"fmt"
	"slices"
)

// references are the manifests that VolumeSnapshots may refer to.
type references struct {
	classes   map[string][]snapshotClass
	byDefault []snapshotClass
	claims    map[string][]manifest // by name, of all namespaces
	used      map[*value]bool       // of the claims
	unread    *Problem              // of a file that may have more of them
}

// resolve adds to the contents what VolumeSnapshots declare together with the manifests
// that they refer to. The classes have been judged. What is remembered of the files
// stays as it is.
func (l *Loader) resolve(contents []*content) {
	refs := gather(contents)
	for i, c := range contents {
		if len(c.classes)+len(c.snapshots.snapshots)+len(c.volumeClaims) == 0 {
			continue
		}
		r := *c
		r.things, r.skipped, r.manifests = slices.Clip(c.things), slices.Clip(c.skipped), slices.Clip(c.manifests)
		contents[i] = &r
		for _, class := range c.classes {
			r.alone = append(r.alone, refs.problems(class)...)
		}
		for _, m := range c.snapshots.snapshots {
			said := l.said[key{imagesSection, longhornName(m.name)}]
			r.resolve(m, refs, said != nil && said.form == snapshotForm)
		}
	}
	for _, c := range contents {
		for _, m := range c.volumeClaims {
			if refs.used[m.doc] {
				c.note(m)
			} else {
				c.skip(m.doc, "is not ours")
			}
		}
		slices.SortStableFunc(c.skipped, func(x, y Skipped) int { return x.Position.compare(y.Position) })
	}
}

func gather(contents []*content) references {
	refs := references{classes: map[string][]snapshotClass{}, claims: map[string][]manifest{}, used: map[*value]bool{}}
	for _, c := range contents {
		if len(c.problems) > 0 && refs.unread == nil {
			refs.unread = &c.problems[0]
		}
		for _, class := range c.classes {
			refs.classes[class.name] = append(refs.classes[class.name], class)
			if class.byDefault {
				refs.byDefault = append(refs.byDefault, class)
			}
		}
		for _, m := range c.volumeClaims {
			refs.claims[m.name] = append(refs.claims[m.name], m)
		}
	}
	return refs
}

// problems are what is wrong with a class.
func (refs references) problems(class snapshotClass) []Problem {
	if class.thing == nil {
		return nil
	}
	if first := refs.classes[class.name][0]; first.thing != class.thing {
		p := class.thing.whole("is defined twice", "keep one of them")
		if first.thing != nil {
			p.Also = first.thing.pos
		}
		return []Problem{p}
	}
	return class.thing.allProblems()
}

// resolve adds what a VolumeSnapshot declares, or skips it. said tells that it declared
// an image the last time.
func (c *content) resolve(m manifest, refs references, said bool) {
	if m.doc.textAt("spec", "source", "volumeSnapshotContentName") != "" && m.doc.textAt(claimName...) == "" {
		c.skip(m.doc, "has the image that its VolumeSnapshotContent names")
		return
	}
	classes, why := refs.classesOf(m)
	switch {
	case len(classes) == 0 && !(refs.unread != nil && said):
		if f := refs.classSlip(m); f != nil {
			c.add(m, key{imagesSection, longhornName(m.name)})
			t := c.things[len(c.things)-1]
			t.problems = append(t.problems, t.problem(*f))
			return
		}
		c.skip(m.doc, why)
		c.skipped[len(c.skipped)-1].Image = longhornName(m.name)
		return
	case len(classes) > 0 && classes[0].other != "":
		c.skip(m.doc, fmt.Sprintf("is of the VolumeSnapshotClass %q, which %s", printable(classes[0].name), classes[0].other))
		return
	}
	if len(classes) > 0 {
		m = m.with(itsClass, classes[0].thing.value)
	}
	claims, problem := refs.claimsOf(m)
	if len(claims) > 0 {
		m = m.with(itsClaim, claims[0])
	}
	c.add(m, key{imagesSection, longhornName(m.name)})
	t := c.things[len(c.things)-1]
	if len(classes) == 0 || len(claims) == 0 {
		t.unread = refs.unread
	}
	for _, class := range classes {
		t.problems = append(t.problems, refs.problems(class)...)
	}
	if problem != nil {
		t.problems = append(t.problems, *problem)
	}
}

var (
	className = fieldPath{"spec", "volumeSnapshotClassName"}
	claimName = fieldPath{"spec", "source", "persistentVolumeClaimName"}
)

// classesOf returns the classes of the name that a VolumeSnapshot gives, or why there
// are none.
func (refs references) classesOf(m manifest) ([]snapshotClass, string) {
	name := m.doc.textAt(className...)
	switch {
	case name != "" && len(refs.classes[name]) == 0:
		why := fmt.Sprintf("is of the VolumeSnapshotClass %q, which is not declared here", printable(name))
		if near := nearest(name, sortedKeys(refs.classes)); near != "" {
			why += fmt.Sprintf(" (did you mean %q?)", printable(near))
		}
		return nil, why
	case name != "":
		return refs.classes[name], ""
	case len(refs.byDefault) == 1:
		return refs.byDefault, ""
	case len(refs.byDefault) == 0:
		return nil, "names no VolumeSnapshotClass, and none that is declared here is the default"
	}
	return nil, "names no VolumeSnapshotClass, and several are the default"
}

// classSlip says what is wrong with a VolumeSnapshot that is meant to have a class, but does
// not say which in a way that can be understood. nil: nothing is.
func (refs references) classSlip(m manifest) *fault {
	name := className[1]
	if slip := m.doc.child(name); slip != nil {
		return &fault{path: fieldPath{name}, atName: true, msg: "unknown field", hint: "it belongs in \"spec\": indent it"}
	}
	if spec := m.doc.child("spec"); spec != nil {
		if slip, hint := spec.value.misplaced(name, nil); slip != nil {
			return &fault{path: fieldPath{"spec", slip.name}, atName: true, msg: "unknown field", hint: hint}
		}
	}
	given, _ := m.doc.find(className, Position{})
	switch {
	case given != nil && given.kind != textKind:
		return &fault{path: className, msg: "has to be a text, not " + given.kind.describe()}
	case given == nil && slices.ContainsFunc(refs.byDefault, func(c snapshotClass) bool { return c.other == "" }): // of several
		return &fault{path: className, msg: "is missing, and several VolumeSnapshotClasses are the default", hint: "name the class"}
	}
	return nil
}

// claimsOf returns the claims of a VolumeSnapshot that name its volume, and what is
// wrong where they name several. Manifests that say no namespace may be of any.
func (refs references) claimsOf(m manifest) (claims []*value, problem *Problem) {
	namespace := m.doc.textAt("metadata", "namespace")
	for _, claim := range refs.claims[m.doc.textAt(claimName...)] {
		its := claim.doc.textAt("metadata", "namespace")
		if its != namespace && its != "" && namespace != "" {
			continue
		}
		refs.used[claim.doc] = true
		if len(claims) > 0 && claims[0].textAt("spec", "volumeName") != claim.doc.textAt("spec", "volumeName") {
			p := fault{path: claimName, msg: "names PersistentVolumeClaims of different volumes", hint: "keep one of them, or give namespaces"}.problem(nil, m.doc, m.pos)
			p.Also = claim.doc.pos
			problem = &p
		}
		claims = append(claims, claim.doc)
	}
	return claims, problem
}
