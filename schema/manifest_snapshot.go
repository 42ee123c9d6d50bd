package schema

import "slices"

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
