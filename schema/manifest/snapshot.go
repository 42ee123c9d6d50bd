package manifest

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

const snapshotGroup = "snapshot.storage.k8s.io"

var snapshotVersions = []string{"v1", "v1beta1"}

// A VolumeSnapshot, its class and its claim together declare an image of a volume. They may
// be in different files, so File collects them and Resolve combines them.
var (
	snapshotClassKind = &Kind{
		Group: snapshotGroup, Versions: snapshotVersions, Name: "VolumeSnapshotClass", Definition: "#VolumeSnapshotClass",
		shared: true, read: readSnapshotClass,
	}
	snapshotKind = &Kind{
		Group: snapshotGroup, Versions: snapshotVersions, Name: "VolumeSnapshot", Definition: "#VolumeSnapshot",
		shared: true, read: readSnapshot, convert: convertSnapshot,
	}
	volumeClaimKind = &Kind{
		Versions: []string{"v1"}, Name: "PersistentVolumeClaim", shared: true, read: readVolumeClaim,
	}
)

// IsVolumeSnapshot reports whether k is the kind VolumeSnapshot.
func (k *Kind) IsVolumeSnapshot() bool { return k == snapshotKind }

// snapshotClass is a VolumeSnapshotClass of any driver.
type snapshotClass struct {
	manifest
	isDefault bool
	unusable  string // why it makes no backing images; "": it does
}

const defaultClassAnnotation = "snapshot.storage.kubernetes.io/is-default-class"

func readSnapshotClass(f *File, m manifest) {
	class := &snapshotClass{m, m.doc.TextAt("metadata", "annotations", defaultClassAnnotation) == "true", ""}
	if by := m.doc.TextAt("driver"); by != "" && by != driver {
		class.unusable = "is of another driver"
	} else if named, ok := f.named(m); !ok {
		return
	} else if class.manifest = named; slices.Contains([]string{"", "snap", "bak"}, m.doc.TextAt("parameters", "type")) {
		class.unusable = "is not of backing images (parameters.type is not bi)"
	}
	if class.unusable != "" {
		f.Skip(m.doc, class.unusable)
	} else {
		f.AddRead(m.doc)
	}
	f.classes = append(f.classes, class)
}

func readSnapshot(f *File, m manifest) {
	if m.name == "" && m.doc.TextAt("metadata", "generateName") != "" {
		f.Skip(m.doc, "has no name yet (generateName)")
	} else if m, ok := f.named(m); ok {
		f.combined = append(f.combined, m)
	}
}

func readVolumeClaim(f *File, m manifest) {
	if m.doc.TextAt("spec", "volumeName") == "" {
		f.Skip(m.doc, notRead)
		return
	}
	f.combined = append(f.combined, m)
}

// notRead is why a document of another program is skipped.
const notRead = "is not a manifest that this program reads"

// repeated returns the problem of a class with the name of another one before it.
func (r *resolver) repeated(class *snapshotClass) []document.Problem {
	first := r.classes[class.name][0]
	if class.unusable != "" || first == class {
		return nil
	}
	p := document.Problem{Position: class.pos, Path: namePath, Message: fmt.Sprintf("VolumeSnapshotClass %q is defined twice", document.Printable(class.name)), Hint: "keep one of them"}
	if first.unusable == "" {
		p.Also = first.pos
	}
	return []document.Problem{p}
}

// resolve adds the image that a VolumeSnapshot declares to the result of its file, or skips it.
func (r *resolver) resolve(out *File, m manifest) {
	image := LonghornName(m.name)
	if m.doc.TextAt("spec", "source", "volumeSnapshotContentName") != "" && m.doc.TextAt(claimPath...) == "" {
		out.Skip(m.doc, "leaves the image to its VolumeSnapshotContent")
		return
	}
	classes, why := r.classesOf(m)
	switch {
	case why != "" && !(r.unread != nil && r.wasDeclared(image)):
		// A VolumeSnapshot whose class is unknown may declare an image. Keep the copies.
		out.Skip(m.doc, why).Image = image
		return
	case len(classes) > 0 && classes[0].unusable != "":
		out.Skip(m.doc, fmt.Sprintf("is of the VolumeSnapshotClass %q, which %s", document.Printable(classes[0].name), classes[0].unusable))
		return
	}
	if len(classes) > 0 {
		m = m.with(classField, classes[0].doc)
	}
	claims, problem := r.claimsOf(m, m.doc.TextAt("metadata", "namespace"), claimPath)
	if len(claims) > 0 {
		m = m.with(claimField, claims[0])
	}
	name, pos := m.doc.Find(namePath, m.pos)
	if m.pos = pos; name != nil {
		m.pos = name.Pos
	}
	d := out.define(m, imagesSection, image)
	if len(classes) == 0 || len(claims) == 0 {
		d.Unread = r.unread
	}
	for _, class := range classes {
		d.Causes = append(d.Causes, r.repeated(class)...)
	}
	if problem != nil {
		d.Causes = append(d.Causes, *problem)
	}
}

var (
	classNamePath = path("spec.volumeSnapshotClassName")
	claimPath     = path("spec.source.persistentVolumeClaimName")
)

// classesOf returns the classes with the name that a VolumeSnapshot gives. Without a name it
// returns the default class. why says why there is no such class; "": there is one.
func (r *resolver) classesOf(m manifest) (classes []*snapshotClass, why string) {
	name := m.doc.TextAt(classNamePath...)
	switch {
	case name != "" && len(r.classes[name]) == 0:
		hint := ""
		if near, ok := r.suggestions.Nearest(name, r.classNames); ok {
			hint = fmt.Sprintf(" (did you mean %q?)", document.Printable(near))
		}
		return nil, fmt.Sprintf("is of the VolumeSnapshotClass %q, which is not declared here%s", document.Printable(name), hint)
	case name != "":
		return r.classes[name], ""
	case len(r.defaultClasses) == 1:
		return r.defaultClasses, ""
	case len(r.defaultClasses) == 0:
		return nil, "has no volumeSnapshotClassName, and no VolumeSnapshotClass here is the default"
	}
	return nil, "has no volumeSnapshotClassName, and several VolumeSnapshotClasses are the default"
}

// convertSnapshot converts a VolumeSnapshot to an export of its volume. If no manifest
// binds its claim to a volume, the volume has the name of the claim.
func convertSnapshot(c *converter) {
	c.imageName(namePath)
	volume := claimPath
	if bound := path(claimField + ".spec.volumeName"); c.get(bound) != nil {
		volume = bound
	}
	c.copy(path("source.exportFromVolume.volumeName"), volume)
	parameters := path(classField + ".parameters")
	exportType, other := parameters.With("export-type"), parameters.With("exportType")
	if c.get(exportType) == nil {
		exportType = other
	} else if c.get(other) != nil && c.text(other) != c.text(exportType) {
		c.problem(other, "differs from export-type", "keep one of them")
	}
	c.copy(path("source.exportFromVolume.exportType"), exportType)
	c.copyList(path("nodeSelector"), parameters.With("nodeSelector"))
	c.copyList(path("diskSelector"), parameters.With("diskSelector"))
	c.warnIfDeleted("Kubernetes")
}
