package schema

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/document"
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

func (c *content) snapshotClass(f *form, doc *document.Value) {
	class := snapshotClass{name: doc.TextAt("metadata", "name"), byDefault: doc.TextAt("metadata", "annotations", defaultClass) == "true"}
	driver, kind := doc.TextAt("driver"), doc.TextAt("parameters", "type")
	by, _ := doc.Find(document.Path{"driver"}, document.Position{})
	switch {
	case c.nearProvisioner("driver", document.Path{"driver"}, by):
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
		class.thing = &thing{key: key{imagesSection, m.name}, form: m.form, origin: c.origin, pos: m.pos, value: doc, sum: doc.Sum()}
		if a, b := doc.TextAt("parameters", "export-type"), doc.TextAt("parameters", "exportType"); a != b && a != "" && b != "" {
			class.thing.problems = []document.Problem{class.thing.problem(document.Problem{Path: document.Path{"parameters", "exportType"}, Message: "is not what export-type says", Hint: "keep one of them"})}
		}
		if kind == "" && !typeSlipped(doc) {
			f := document.Problem{Path: document.Path{"parameters", "type"}, Message: "is missing", Hint: "write \"type: bi\", or remove what is for backing images alone"}
			class.thing.problems = []document.Problem{class.thing.problem(f)}
		}
	} else {
		return
	}
	c.classes = append(c.classes, class)
}

// typeSlipped reports whether a class without a type may be meant to have one.
func typeSlipped(doc *document.Value) bool {
	if slipped, _ := misplaced(doc, "parameters", []string{"type"}); slipped != nil {
		return true
	}
	parameters := doc.Field("parameters")
	if parameters == nil {
		return false
	}
	given := parameters.Value.Field("type")
	slipped, _ := misplaced(parameters.Value, "type", nil)
	return parameters.Value.Kind != document.Map || given != nil && !given.Value.IsScalar() || slipped != nil
}

// typeMissing reports whether a class without a type has what only one of backing images
// has a use for.
func typeMissing(doc *document.Value) bool {
	parameters := doc.Field("parameters")
	return parameters != nil && slices.ContainsFunc(parameters.Value.Fields, func(f document.Field) bool {
		return slices.Contains([]string{"type", "export-type", "exportType", "nodeSelector", "diskSelector"}, f.Name)
	})
}

func (c *content) snapshot(f *form, doc *document.Value) {
	if doc.TextAt("metadata", "name") == "" && doc.TextAt("metadata", "generateName") != "" {
		c.skip(doc, "has no name yet (generateName)")
	} else if m, ok := c.named(f, doc); ok {
		c.snapshots.snapshots = append(c.snapshots.snapshots, m)
	}
}

func (c *content) volumeClaim(f *form, doc *document.Value) {
	if doc.TextAt("spec", "volumeName") == "" {
		c.skip(doc, "is not ours")
		return
	}
	c.volumeClaims = append(c.volumeClaims, manifest{form: f, doc: doc, name: doc.TextAt("metadata", "name"), pos: doc.Pos})
}

// The fields that a VolumeSnapshot has once its class and its claim are found. No
// manifest has them.
const (
	itsClass = "VolumeSnapshotClass"
	itsClaim = "PersistentVolumeClaim"
)

// with returns the manifest with another one as its field.
func (m manifest) with(name string, doc *document.Value) manifest {
	v := *m.doc
	v.Fields = slices.Concat([]document.Field{{Name: name, Pos: doc.Pos, Value: doc}}, v.Fields)
	m.doc = &v
	return m
}

// ownManifest is the manifest v without those that were found for it.
func ownManifest(v *document.Value) *document.Value {
	w := *v
	for len(w.Fields) > 0 && (w.Fields[0].Name == itsClass || w.Fields[0].Name == itsClaim) {
		w.Fields = w.Fields[1:]
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
	exportType := parameters.With("export-type")
	if tr.get(exportType) == nil {
		exportType = parameters.With("exportType")
	}
	tr.carry(at("source.exportFromVolume.exportType"), exportType)
	tr.split(at("nodeSelector"), parameters.With("nodeSelector"))
	tr.split(at("diskSelector"), parameters.With("diskSelector"))
	if deleted := at("metadata.deletionTimestamp"); tr.get(deleted) != nil {
		tr.warn(deleted, "is being deleted in Kubernetes, and is declared here", "remove the manifest to have the image removed")
	}
}

// references are the manifests that VolumeSnapshots may refer to.
type references struct {
	classes   map[string][]snapshotClass
	byDefault []snapshotClass
	claims    map[string][]manifest    // by name, of all namespaces
	used      map[*document.Value]bool // of the claims
	unread    *document.Problem        // of a file that may have more of them
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
		slices.SortStableFunc(c.skipped, func(x, y Skipped) int { return x.Position.Compare(y.Position) })
	}
}

func gather(contents []*content) references {
	refs := references{classes: map[string][]snapshotClass{}, claims: map[string][]manifest{}, used: map[*document.Value]bool{}}
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
func (refs references) problems(class snapshotClass) []document.Problem {
	if class.thing == nil {
		return nil
	}
	if first := refs.classes[class.name][0]; first.thing != class.thing {
		p := class.thing.whole("is defined twice", "keep one of them")
		if first.thing != nil {
			p.Also = first.thing.pos
		}
		return []document.Problem{p}
	}
	return class.thing.allProblems()
}

// resolve adds what a VolumeSnapshot declares, or skips it. said tells that it declared
// an image the last time.
func (c *content) resolve(m manifest, refs references, said bool) {
	if m.doc.TextAt("spec", "source", "volumeSnapshotContentName") != "" && m.doc.TextAt(claimName...) == "" {
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
		c.skip(m.doc, fmt.Sprintf("is of the VolumeSnapshotClass %q, which %s", document.Printable(classes[0].name), classes[0].other))
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
	className = document.Path{"spec", "volumeSnapshotClassName"}
	claimName = document.Path{"spec", "source", "persistentVolumeClaimName"}
)

// classesOf returns the classes of the name that a VolumeSnapshot gives, or why there
// are none.
func (refs references) classesOf(m manifest) ([]snapshotClass, string) {
	name := m.doc.TextAt(className...)
	switch {
	case name != "" && len(refs.classes[name]) == 0:
		why := fmt.Sprintf("is of the VolumeSnapshotClass %q, which is not declared here", document.Printable(name))
		if near, ok := document.Nearest(name, sortedKeys(refs.classes)); ok {
			why += fmt.Sprintf(" (did you mean %q?)", document.Printable(near))
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
func (refs references) classSlip(m manifest) *document.Problem {
	name := className[1]
	if slip := m.doc.Field(name); slip != nil {
		return &document.Problem{Path: document.Path{name}, AtName: true, Message: "unknown field", Hint: "it belongs in \"spec\": indent it"}
	}
	if spec := m.doc.Field("spec"); spec != nil {
		if slip, hint := misplaced(spec.Value, name, nil); slip != nil {
			return &document.Problem{Path: document.Path{"spec", slip.Name}, AtName: true, Message: "unknown field", Hint: hint}
		}
	}
	given, _ := m.doc.Find(className, document.Position{})
	switch {
	case given != nil && given.Kind != document.Text:
		return &document.Problem{Path: className, Message: "has to be a text, not " + given.Kind.String()}
	case given == nil && slices.ContainsFunc(refs.byDefault, func(c snapshotClass) bool { return c.other == "" }): // of several
		return &document.Problem{Path: className, Message: "is missing, and several VolumeSnapshotClasses are the default", Hint: "name the class"}
	}
	return nil
}

// claimsOf returns the claims of a VolumeSnapshot that name its volume, and what is
// wrong where they name several. Manifests that say no namespace may be of any.
func (refs references) claimsOf(m manifest) (claims []*document.Value, problem *document.Problem) {
	namespace := m.doc.TextAt("metadata", "namespace")
	for _, claim := range refs.claims[m.doc.TextAt(claimName...)] {
		its := claim.doc.TextAt("metadata", "namespace")
		if its != namespace && its != "" && namespace != "" {
			continue
		}
		refs.used[claim.doc] = true
		if len(claims) > 0 && claims[0].TextAt("spec", "volumeName") != claim.doc.TextAt("spec", "volumeName") {
			p := document.Problem{Path: claimName, Message: "names PersistentVolumeClaims of different volumes", Hint: "keep one of them, or give namespaces"}.Placed(nil, m.doc, m.pos)
			p.Also = claim.doc.Pos
			problem = &p
		}
		claims = append(claims, claim.doc)
	}
	return claims, problem
}
