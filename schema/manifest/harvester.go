package manifest

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// A VirtualMachineImage of Harvester is an image of Longhorn: Harvester makes a BackingImage of it,
// and annotates the BackingImage with the namespace and the name. Both may be in different files,
// so File collects the VirtualMachineImages and Resolve combines them: with its BackingImage, a
// VirtualMachineImage is a reference, and without it, a definition.
var machineImageKind = &Kind{
	Group: "harvesterhci.io", Versions: []string{"v1beta1"}, Name: "VirtualMachineImage", Definition: "#VirtualMachineImage",
	ImagePath: namePath, read: readMachineImage, convert: convertMachineImage,
}

// imageIDAnnotation is the annotation of a BackingImage with NAMESPACE/NAME of its VirtualMachineImage.
const imageIDAnnotation = "harvesterhci.io/imageId"

// Fields that Resolve adds to a VirtualMachineImage for what it finds in other documents.
const (
	definedField     = "backingImage"     // the BackingImage that defines the image
	sourceImageField = "sourceImage"      // of a clone: the image to copy
	notDumpedField   = "backingImageLost" // the cluster has a BackingImage that is not declared here
)

// defaultReplicas is the number of copies that Harvester sets.
const defaultReplicas int64 = 3

// secretParameter is the storage class parameter with the secret of an encrypted image.
const secretParameter = "csi.storage.k8s.io/node-publish-secret-name"

var (
	storageClassParametersPath = path("spec.storageClassParameters")
	machineClaimPath           = path("spec.pvcName")
)

func readMachineImage(f *File, m manifest) {
	m, ok := f.named(m)
	switch {
	case !ok:
	case m.doc.TextAt("spec", "backend") == "cdi":
		_, image := m.imageNames()
		f.withhold(m.doc, "has the backend cdi: Harvester makes no BackingImage of it", image)
	case m.doc.TextAt("metadata", "namespace") == "":
		f.AddProblem(m.pos, path("metadata.namespace"), "is missing", "the name of the image depends on it")
	case m.doc.Field("status") != nil && m.doc.TextAt("metadata", "uid") == "":
		f.AddProblem(m.pos, path("metadata.uid"), "is missing", "the name of an image in a dump depends on it; in a manifest that you write, remove status, too")
	default:
		f.combined = append(f.combined, m)
	}
}

// machineImage is a VirtualMachineImage and the image that it describes.
type machineImage struct {
	manifest
	image   string            // name of the image
	defined *Definition       // the BackingImage, or nil
	problem *document.Problem // of the search for the BackingImage; nil: none
	lost    bool              // see notDumpedField
}

// id returns the namespace and the name, as in the annotation of a BackingImage.
func (m manifest) id() string { return m.doc.TextAt("metadata", "namespace") + "/" + m.name }

// backupImageName matches the names that Harvester takes from the address of a backup.
var backupImageName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]+$`)

// imageNames returns the names under which Harvester looks for the BackingImage of a VirtualMachineImage, and
// the name that it would give a new BackingImage.
func (m manifest) imageNames() (names []string, newName string) {
	full := m.doc.TextAt("metadata", "namespace") + "-" + m.name
	names, newName = []string{full, LonghornName(full)}, LonghornName(full)
	if uid := m.doc.TextAt("metadata", "uid"); uid != "" {
		newName = LonghornName("vmi-" + uid)
		names = append(names, newName)
	}
	if m.doc.TextAt("spec", "sourceType") != restore {
		return names, newName
	}
	backup, err := url.Parse(m.doc.TextAt("spec", "url"))
	if err != nil || !backupImageName.MatchString(backup.Query().Get("backingImage")) {
		return names, newName
	}
	inBackup := backup.Query().Get("backingImage")
	return slices.Insert(names, 0, inBackup), LonghornName(inBackup)
}

// machineImages are the VirtualMachineImages of all files, with their BackingImages.
type machineImages struct {
	all       map[*document.Value]*machineImage
	byID      map[string]*machineImage
	byName    map[string]*Definition // BackingImages
	annotated map[string][]*Definition
	maybe     map[string]schema.Skipped // documents of Longhorn with an unknown kind, by name
}

// findMachineImages finds the BackingImage of each VirtualMachineImage: the BackingImage with its
// annotation, or else a BackingImage with a name under which Harvester looks for it.
func findMachineImages(files []*File) machineImages {
	found := machineImages{all: map[*document.Value]*machineImage{}, byID: map[string]*machineImage{},
		byName: map[string]*Definition{}, annotated: map[string][]*Definition{}, maybe: map[string]schema.Skipped{}}
	for _, f := range files {
		dumped := false
		for _, d := range slices.Concat(f.Definitions, f.withheld) {
			if d.Kind == backingImageKind {
				dumped = true
				found.addBackingImage(d)
			}
		}
		for i, m := range f.of(machineImageKind) {
			image := &machineImage{manifest: m}
			image.lost = m.doc.TextAt("metadata", "uid") != "" && (!dumped && i == 0 || dumped && isImported(m.doc))
			found.all[m.doc] = image
			if found.byID[m.id()] == nil {
				found.byID[m.id()] = image
			}
		}
		for _, s := range f.Skipped {
			if s.Foreign && strings.HasPrefix(s.APIVersion, backingImageKind.Group+"/") && s.Kind != "BackingImageDataSource" {
				found.maybe[s.Name] = s
			}
		}
	}
	for _, m := range found.all {
		found.findBackingImage(m)
	}
	return found
}

func (found machineImages) addBackingImage(d *Definition) {
	if found.byName[d.Name] == nil {
		found.byName[d.Name] = d
	}
	if id := d.imageID(); id != "" {
		found.annotated[id] = append(found.annotated[id], d)
	}
}

// imageID returns the annotation of a BackingImage with its VirtualMachineImage, or "".
func (d *Definition) imageID() string {
	return d.Doc.TextAt("metadata", "annotations", imageIDAnnotation)
}

// isImported reports whether a VirtualMachineImage says that Longhorn has the image.
func isImported(doc *document.Value) bool {
	conditions, _ := doc.Find(path("status.conditions"), doc.Pos)
	return conditions != nil && slices.ContainsFunc(conditions.Items, func(c *document.Value) bool {
		return c.TextAt("type") == "Imported" && c.TextAt("status") == "True"
	})
}

func (found machineImages) findBackingImage(m *machineImage) {
	names, newName := m.imageNames()
	m.image = newName
	if all := found.annotated[m.id()]; len(all) > 0 {
		m.defined, m.image = all[0], all[0].Name
		if i := slices.IndexFunc(all, func(d *Definition) bool { return d.Name != m.image }); i >= 0 {
			m.problem = &document.Problem{Path: namePath, Message: fmt.Sprintf("has two BackingImages: %q and %q have the annotation %s", m.image, all[i].Name, imageIDAnnotation),
				Hint: "correct one of the annotations", Also: all[i].Pos}
		}
		return
	}
	for _, name := range names {
		if d := found.byName[name]; d != nil {
			m.defined, m.image = d, name
			if id := d.imageID(); id != "" && found.byID[id] != nil {
				m.problem = &document.Problem{Path: namePath, Message: fmt.Sprintf("has the BackingImage %q by its name, but the annotation %s says %q", name, imageIDAnnotation, document.Printable(id)),
					Hint: fmt.Sprintf("correct the annotation, or remove the VirtualMachineImage %q or %q", document.Printable(m.id()), document.Printable(id)), Also: d.Pos}
			}
			return
		}
	}
	// Without its BackingImage, the image would get another uuid. Its kind may have a typing error.
	for _, name := range names {
		if s, ok := found.maybe[name]; ok {
			m.problem = &document.Problem{Path: namePath, Message: fmt.Sprintf("has no BackingImage, and the %s %q, which may be it, is skipped", document.Printable(s.Kind), name),
				Hint: "correct the kind of that document, or remove it", Also: s.Position}
			return
		}
	}
}

// resolveMachineImage adds the image that a VirtualMachineImage refers to or defines to the result of its file.
func (r *resolver) resolveMachineImage(out *File, m *machineImage) {
	if m.defined != nil && isV2(m.defined.Doc) && m.problem == nil {
		out.Skip(m.doc, "has a BackingImage that "+whyV2).Image = m.image
		return
	}
	doc := m.manifest
	var claimProblem *document.Problem
	switch m.doc.TextAt("spec", "sourceType") {
	case clone:
		security := []string{"spec", "securityParameters"}
		id := m.doc.TextAt(append(security, "sourceImageNamespace")...) + "/" + m.doc.TextAt(append(security, "sourceImageName")...)
		if source := r.machineImages.byID[id]; source != nil {
			doc = doc.with(sourceImageField, textValue(source.image, m.pos)).withPart(sourceField, source.doc, storageClassParametersPath.With(secretParameter))
		}
	case exportFromVolume:
		var claims []*document.Value
		if claims, claimProblem = r.claimsOf(m.manifest, m.doc.TextAt("spec", "pvcNamespace"), machineClaimPath); len(claims) > 0 {
			doc = doc.withPart(claimField, claims[0], path("spec.volumeName"))
		}
	}
	switch {
	case m.defined != nil:
		doc = doc.with(definedField, textValue(m.defined.Name, m.pos))
	case m.lost:
		doc = doc.with(notDumpedField, textValue("true", m.pos))
	}

	d := out.definition(doc, imagesSection, m.image, namePath)
	if m.problem != nil {
		d.Causes = append(d.Causes, m.problem.Placed(nil, m.doc, m.pos))
	}
	if claimProblem != nil {
		d.Causes = append(d.Causes, *claimProblem)
	}
	if m.defined != nil {
		out.References = append(out.References, d)
		return
	}
	d.Unread = r.unread
	out.Definitions = append(out.Definitions, d)
}

// withPart returns the manifest with one value of another document as an additional first field. The path at is in that document.
func (m manifest) withPart(name string, doc *document.Value, at document.Path) manifest {
	part, pos := doc.Find(at, doc.Pos)
	if part == nil {
		return m
	}
	for _, step := range slices.Backward(at) {
		part = &document.Value{Kind: document.Map, Pos: pos, Fields: []document.Field{{Name: step, Pos: pos, Value: part}}}
	}
	return m.with(name, part)
}

// Fields of a VirtualMachineImage, and the volume that its claim is bound to.
var (
	machineType     = path("spec.sourceType")
	machineURL      = path("spec.url")
	machineChecksum = path("spec.checksum")
	machineSecurity = path("spec.securityParameters")
	boundVolumePath = path(claimField + ".spec.volumeName")
)

// machineConverter converts a VirtualMachineImage.
type machineConverter struct {
	*converter
	source     sourceType
	parameters map[string]document.Path // of the source, by name in Longhorn
}

func convertMachineImage(c *converter) {
	s, _ := findSourceType(c.text(machineType))
	m := machineConverter{c, s, map[string]document.Path{}}
	switch s.name {
	case download:
		m.parameters["url"] = machineURL
	case restore:
		m.parameters["backup-url"] = machineURL
	case exportFromVolume:
		if m.parameters["volume-name"] = boundVolumePath; c.get(boundVolumePath) == nil {
			m.parameters["volume-name"] = machineClaimPath
		}
	case clone:
		m.parameters["backing-image"] = path(sourceImageField)
		m.parameters["encryption"] = machineSecurity.With("cryptoOperation")
	}
	m.checkSource()
	c.title(path("spec.displayName"))
	if c.get(path(definedField)) != nil {
		m.refer()
	} else {
		m.define()
	}
}

// checkSource reports fields that the type of source requires or does not have.
func (m machineConverter) checkSource() {
	require := func(at document.Path, hint string) {
		if m.get(at) == nil {
			m.problem(at, "is missing", hint)
		}
	}
	if m.source.name == download || m.source.name == restore {
		require(machineURL, "the source type "+m.source.name+" needs an address")
	} else if m.get(machineURL) != nil {
		m.problem(machineURL, "is not used by the source type "+m.source.name, "remove it")
	}
	if m.source.name == exportFromVolume {
		require(machineClaimPath, "set it to the name of the PersistentVolumeClaim to export")
		require(path("spec.pvcNamespace"), "it is the namespace of the PersistentVolumeClaim")
	}
	switch isClone := m.source.name == clone; {
	case !isClone && m.get(machineSecurity) != nil:
		m.problem(machineSecurity, "is not used by the source type "+m.source.name, "remove it")
	case !isClone:
	case m.get(machineSecurity) == nil:
		m.problem(machineSecurity, "is missing", "the source type clone needs the image to copy")
	case m.text(m.parameters["encryption"]) == encrypt && m.get(storageClassParametersPath.With(secretParameter)) == nil:
		m.problem(storageClassParametersPath, "has no "+secretParameter, "an encrypted image needs the name of the secret with the key")
	case m.get(m.parameters["backing-image"]) == nil:
		m.problem(machineSecurity.With("sourceImageName"), "is not the name of a VirtualMachineImage that is declared here", "")
	}
}

// refer makes the manifest a reference, which is compared with the BackingImage that defines the image.
func (m machineConverter) refer() {
	if m.get(boundVolumePath) == nil {
		delete(m.parameters, "volume-name") // unknown
	}
	r := &Reference{typeAt: machineType, checksumAt: machineChecksum, sourceType: m.source.name, parameters: map[string]string{},
		compared: m.parameters, incomplete: "its BackingImage declares it"}
	for name, from := range m.parameters {
		r.parameters[name] = m.text(from)
	}
	if m.source.name != clone {
		r.setChecksum(m.text(machineChecksum))
	}
	m.Reference = r
	m.placeholder(machineType)
	for _, name := range []string{credentialsAnnotation, trackAnnotation} {
		if at := (document.Path{"metadata", "annotations", name}); m.get(at) != nil {
			m.warn(at, "is not used: the BackingImage declares the image", "annotate the BackingImage, or remove it")
		}
	}
}

// define makes the manifest the definition of its image.
func (m machineConverter) define() {
	native := document.Path{"source", m.source.native}
	m.mapping(native, machineType)
	for _, p := range m.source.parameters {
		if from := m.parameters[p.longhorn]; from != nil {
			m.copy(native.With(p.native), from)
		}
	}
	isClone := m.source.name == clone
	if isClone {
		secret := storageClassParametersPath.With(secretParameter)
		if m.text(m.parameters["encryption"]) != encrypt {
			secret = append(path(sourceField), secret...)
		}
		m.copy(native.With("secret"), secret)
	}
	if m.source.name == exportFromVolume && m.get(boundVolumePath) == nil {
		m.warn(machineClaimPath, "has no manifest of the PersistentVolumeClaim: the volume is assumed to have its name", "add persistentvolumeclaims to the dump")
	}
	m.credentials(m.source.native)
	m.copies()
	if isClone && m.get(machineChecksum) != nil {
		m.warn(machineChecksum, "is not used, as in Longhorn: an encryption has other bytes", "remove it")
	} else {
		m.copy(path("checksum"), machineChecksum)
	}
	m.track()
	if m.get(path(notDumpedField)) != nil {
		m.warn(namePath, "has no BackingImage here, so no copy of Longhorn can be adopted by its uuid", "add backingimages.longhorn.io of all namespaces to the dump")
	}
	m.warnIfDeleted("Harvester")
}

// copies sets the number of copies, which Harvester takes from the storage class.
func (m machineConverter) copies() {
	copies, native := storageClassParametersPath.With("numberOfReplicas"), path("minNumberOfCopies")
	if m.get(copies) == nil {
		m.set(native, copies, &document.Value{Kind: document.Number, Number: defaultReplicas, Text: fmt.Sprint(defaultReplicas), Pos: m.doc.Pos})
	} else {
		m.copyNumber(native, copies)
	}
}
