package schema

import (
	"fmt"
	"slices"
)

const snapshotGroup = "snapshot.storage.k8s.io"

var snapshotVersions = []string{"v1", "v1beta1"}

// What makes an image of a volume is said by three manifests: a VolumeSnapshot, its
// class, and its claim. Each may be in a file of its own, so they are collected while
// the files are read, and put together after that; see resolve.
var (
	snapshotClassForm = &form{
		group: snapshotGroup, versions: snapshotVersions, kind: "VolumeSnapshotClass", definition: "#VolumeSnapshotClass",
		common: true, take: (*content).snapshotClass,
	}
	snapshotForm = &form{
		group: snapshotGroup, versions: snapshotVersions, kind: "VolumeSnapshot", definition: "#VolumeSnapshot",
		common: true, take: (*content).snapshot, translate: translateSnapshot,
	}
	volumeClaimForm = &form{
		group: "", versions: []string{"v1"}, kind: "PersistentVolumeClaim",
		common: true, take: (*content).volumeClaim,
	}
)

// snapshots are the manifests of a content that say something only together with
// others.
type snapshots struct {
	classes      []snapshotClass
	snapshots    []manifest
	volumeClaims []manifest // that name their volume
}

// snapshotClass is a VolumeSnapshotClass of any driver.
type snapshotClass struct {
	name      string
	byDefault bool
	other     string // why it makes no backing images, "" where it does
	thing     *thing // what it says where it does
}

const defaultClass = "snapshot.storage.kubernetes.io/is-default-class"

func (c *content) snapshotClass(f *form, doc *value) {
	class := snapshotClass{name: doc.textAt("metadata", "name"), byDefault: doc.textAt("metadata", "annotations", defaultClass) == "true"}
	driver, kind := doc.textAt("driver"), doc.textAt("parameters", "type")
	by, _ := doc.find(fieldPath{"driver"}, Position{})
	switch {
	case c.nearProvisioner("driver", fieldPath{"driver"}, by):
		return
	case driver != "" && driver != provisioner:
		class.other = "is of another driver"
	case driver == provisioner && kind == "" && (typeSlipped(doc) || typeMissing(doc)): // what is wrong with it is told as of any class
	case slices.Contains([]string{"", "snap", "bak"}, kind) && class.name != "":
		class.other = "is not of backing images (parameters.type is not bi)"
	}
	if class.other != "" {
		c.skip(doc, class.other)
	} else if m, ok := c.named(f, doc); ok {
		c.note(m)
		class.thing = &thing{key: key{imagesSection, m.name}, form: m.form, origin: c.origin, pos: m.pos, value: doc, sum: doc.sum()}
		if a, b := doc.textAt("parameters", "export-type"), doc.textAt("parameters", "exportType"); a != b && a != "" && b != "" {
			class.thing.problems = []Problem{class.thing.problem(fault{path: fieldPath{"parameters", "exportType"}, msg: "is not what export-type says", hint: "keep one of them"})}
		}
		if kind == "" && !typeSlipped(doc) {
			f := fault{path: fieldPath{"parameters", "type"}, msg: "is missing", hint: "write \"type: bi\", or remove what is for backing images alone"}
			class.thing.problems = []Problem{class.thing.problem(f)}
		}
	} else {
		return
	}
	c.classes = append(c.classes, class)
}

// typeSlipped reports whether a class without a type may be meant to have one.
func typeSlipped(doc *value) bool {
	if slipped, _ := doc.misplaced("parameters", []string{"type"}); slipped != nil {
		return true
	}
	parameters := doc.child("parameters")
	if parameters == nil {
		return false
	}
	given := parameters.value.child("type")
	slipped, _ := parameters.value.misplaced("type", nil)
	return parameters.value.kind != mapKind || given != nil && !given.value.scalar() || slipped != nil
}

// typeMissing reports whether a class without a type has what only one of backing images
// has a use for.
func typeMissing(doc *value) bool {
	parameters := doc.child("parameters")
	return parameters != nil && slices.ContainsFunc(parameters.value.fields, func(f field) bool {
		return slices.Contains([]string{"type", "export-type", "exportType", "nodeSelector", "diskSelector"}, f.name)
	})
}

func (c *content) snapshot(f *form, doc *value) {
	if doc.textAt("metadata", "name") == "" && doc.textAt("metadata", "generateName") != "" {
		c.skip(doc, "has no name yet (generateName)")
	} else if m, ok := c.named(f, doc); ok {
		c.snapshots.snapshots = append(c.snapshots.snapshots, m)
	}
}

func (c *content) volumeClaim(f *form, doc *value) {
	if doc.textAt("spec", "volumeName") == "" {
		c.skip(doc, "is not ours")
		return
	}
	c.volumeClaims = append(c.volumeClaims, manifest{form: f, doc: doc, name: doc.textAt("metadata", "name"), pos: doc.pos})
}

// textAt is the text at a path, or "".
func (v *value) textAt(path ...string) string {
	if found, _ := v.find(path, Position{}); found != nil {
		return found.text
	}
	return ""
}

// The fields that a VolumeSnapshot has once its class and its claim are found. No
// manifest has them.
const (
	itsClass = "VolumeSnapshotClass"
	itsClaim = "PersistentVolumeClaim"
)

// with returns the manifest with another one as its field.
func (m manifest) with(name string, doc *value) manifest {
	v := *m.doc
	v.fields = slices.Concat([]field{{name: name, pos: doc.pos, value: doc}}, v.fields)
	m.doc = &v
	return m
}

// own is the manifest v without those that were found for it.
func (v *value) own() *value {
	w := *v
	for len(w.fields) > 0 && (w.fields[0].name == itsClass || w.fields[0].name == itsClaim) {
		w.fields = w.fields[1:]
	}
	return &w
}

// translateSnapshot says that a VolumeSnapshot is an export of its volume. The volume
// of a claim that no manifest binds to another one is named like the claim.
func translateSnapshot(tr *translation) {
	name := at("metadata.name")
	tr.rename(name, tr.text(name))
	volume := at("spec.source.persistentVolumeClaimName")
	if bound := at(itsClaim + ".spec.volumeName"); tr.get(bound) != nil {
		volume = bound
	}
	tr.carry(at("source.exportFromVolume.volumeName"), volume)
	parameters := at(itsClass + ".parameters")
	exportType := parameters.with("export-type")
	if tr.get(exportType) == nil {
		exportType = parameters.with("exportType")
	}
	tr.carry(at("source.exportFromVolume.exportType"), exportType)
	tr.split(at("nodeSelector"), parameters.with("nodeSelector"))
	tr.split(at("diskSelector"), parameters.with("diskSelector"))
	if deleted := at("metadata.deletionTimestamp"); tr.get(deleted) != nil {
		tr.warn(deleted, "is being deleted in Kubernetes, and is declared here", "remove the manifest to have the image removed")
	}
}

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
