package manifest

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// resolver finds the manifests to which VolumeSnapshots and VirtualMachineImages refer.
type resolver struct {
	classes        map[string][]*snapshotClass
	defaultClasses []*snapshotClass
	claims         map[string][]manifest // by name, of all namespaces
	classNames     []string              // sorted
	suggestions    document.Suggestions
	used           map[*document.Value]bool // the claims that a manifest names
	unread         *document.Problem        // of the first file that cannot be read, which may contain further manifests; nil: none
	wasDeclared    func(image string) bool  // see Resolve
	machineImages  machineImages
	resolved       map[*File]*File // the result
}

// Resolve combines the VolumeSnapshots of all files with their classes and claims, and the VirtualMachineImages with their
// BackingImages and claims. It returns, for each file, the declarations that these combinations add, and those of its CDI
// manifests. wasDeclared reports whether a VolumeSnapshot declared an image at the last load. Such a VolumeSnapshot still
// declares the image while a file that may contain its class cannot be read.
func Resolve(files []*File, wasDeclared func(image string) bool) map[*File]*File {
	r := resolver{
		classes: map[string][]*snapshotClass{}, claims: map[string][]manifest{}, used: map[*document.Value]bool{},
		wasDeclared: wasDeclared, resolved: map[*File]*File{}, machineImages: findMachineImages(files),
	}
	for _, f := range files {
		r.resolved[f] = &File{Path: f.Path}
		if len(f.Problems) > 0 && r.unread == nil {
			r.unread = &f.Problems[0]
		}
		for _, class := range f.classes {
			r.classes[class.name] = append(r.classes[class.name], class)
			if class.isDefault {
				r.defaultClasses = append(r.defaultClasses, class)
			}
		}
		for _, claim := range f.of(volumeClaimKind) {
			r.claims[claim.name] = append(r.claims[claim.name], claim)
		}
	}
	r.classNames = slices.Sorted(maps.Keys(r.classes))
	for _, f := range files {
		for _, class := range f.classes {
			r.resolved[f].Problems = append(r.resolved[f].Problems, r.repeated(class)...)
		}
		for _, m := range f.of(snapshotKind) {
			r.resolve(r.resolved[f], m)
		}
		for _, m := range f.of(machineImageKind) {
			r.resolveMachineImage(r.resolved[f], r.machineImages.all[m.doc])
		}
	}
	r.resolveDataVolumes(files)
	for _, f := range files {
		for _, claim := range f.of(volumeClaimKind) {
			if r.used[claim.doc] {
				r.resolved[f].AddRead(claim.doc)
			} else {
				r.resolved[f].Skip(claim.doc, notRead)
			}
		}
	}
	return r.resolved
}

// Combined returns how many manifests of the file may declare an image with others.
func (f *File) Combined() int { return len(f.combined) - len(f.of(volumeClaimKind)) }

// claimsOf returns the claims that m names at this path and that are bound to a volume. If their volumes differ, it also
// returns a problem. A manifest without a namespace may be in any namespace.
func (r *resolver) claimsOf(m manifest, namespace string, at document.Path) (claims []*document.Value, problem *document.Problem) {
	for _, claim := range r.claims[m.doc.TextAt(at...)] {
		other := claim.doc.TextAt("metadata", "namespace")
		if other != namespace && other != "" && namespace != "" {
			continue
		}
		r.used[claim.doc] = true
		if len(claims) > 0 && claims[0].TextAt("spec", "volumeName") != claim.doc.TextAt("spec", "volumeName") {
			hint := "keep one of them, or set metadata.namespace in each claim"
			if m.kind == snapshotKind {
				hint = "keep one of them, or set metadata.namespace in the VolumeSnapshot and in each claim"
			}
			p := document.Problem{Path: at, Message: "refers to PersistentVolumeClaims of different volumes", Hint: hint}.Placed(nil, m.doc, m.pos)
			p.Also = claim.doc.Pos
			problem = &p
		}
		claims = append(claims, claim.doc)
	}
	return claims, problem
}

// The fields that Resolve adds to a manifest for the documents that it refers to.
const (
	classField  = "VolumeSnapshotClass"
	claimField  = "PersistentVolumeClaim"
	sourceField = "VirtualMachineImage"
)

// with returns the manifest with another value, such as a document, as an additional first field.
func (m manifest) with(name string, doc *document.Value) manifest {
	v := *m.doc
	v.Fields = slices.Concat([]document.Field{{Name: name, Pos: doc.Pos, Value: doc, Added: true}}, v.Fields)
	m.doc = &v
	return m
}

// ClassOf returns the VolumeSnapshotClass that Resolve added to a VolumeSnapshot, and its kind; nil: there is none.
func ClassOf(doc *document.Value) (kind *Kind, class *document.Value) {
	if f := doc.Field(classField); f != nil && f.Added {
		return snapshotClassKind, f.Value
	}
	return nil, nil
}

// Own returns the document of a definition without the fields that Resolve added.
func Own(doc *document.Value) *document.Value {
	own := *doc
	for len(own.Fields) > 0 && own.Fields[0].Added {
		own.Fields = own.Fields[1:]
	}
	return &own
}
