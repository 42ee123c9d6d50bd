package manifest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

const cdiGroup = "cdi.kubevirt.io"

var cdiVersions = []string{"v1beta1"}

// Manifests of CDI, which fills volumes with images. A DataVolume or VolumeImportSource declares the image
// that it imports. CDI converts an image to raw, so its volumes never have the bytes of the image here.
var (
	dataVolumeKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "DataVolume", Definition: "#DataVolume",
		ImagePath: namePath, read: readImport, convert: func(c *converter) { importConverter{c}.dataVolume() },
	}
	importSourceKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "VolumeImportSource", Definition: "#VolumeImportSource",
		ImagePath: namePath, read: readImport, convert: func(c *converter) { importConverter{c}.source() },
	}
	importCronKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "DataImportCron", Definition: "#DataImportCron",
		ImagePath: path("spec.managedDataSource"), read: readImport, convert: func(c *converter) { importConverter{c}.cron() },
	}
	dataSourceKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "DataSource", shared: true,
		read: func(f *File, m manifest) {
			f.Skip(m.doc, "names a volume or a snapshot of Kubernetes, not an image")
		},
	}
)

func readImport(f *File, m manifest) {
	if m, ok := f.named(m); ok {
		f.combined = append(f.combined, m)
	}
}

// sameImageField is a field that Resolve adds: the position of another manifest of CDI that declares the
// same image.
const sameImageField = "sameImage"

// resolveDataVolumes adds the definitions of the manifests of CDI. Manifests in different namespaces may have the
// same name. They declare one image if they have the same source, and are defined twice otherwise. One that
// declares nothing for another reason than its source hides no other.
func (r *resolver) resolveDataVolumes(files []*File) {
	type declared struct {
		pos    document.Position
		source [sha256.Size]byte
	}
	first := map[string]declared{}
	for _, f := range files {
		for _, m := range f.of(dataVolumeKind, importSourceKind) {
			name := LonghornName(m.name)
			var source [sha256.Size]byte
			if v, _ := m.doc.Find(cdiSourcePath, m.pos); v != nil {
				source = v.Sum()
			}
			switch same, ok := first[name]; {
			case declinedBesideSource(m.doc) != "":
			case !ok:
				first[name] = declared{m.pos, source}
			case same.source == source:
				m = m.with(sameImageField, textValue(same.pos.String(), m.pos))
			}
			r.defineByCDI(f, m, name)
		}
		for _, m := range f.of(importCronKind) {
			r.defineByCDI(f, m, LonghornName(m.name))
		}
	}
}

// defineByCDI adds a definition. Its conversion finds out whether the manifest declares anything, and whether an
// image can have its name.
func (r *resolver) defineByCDI(f *File, m manifest, image string) {
	r.resolved[f].Definitions = append(r.resolved[f].Definitions, &Definition{
		Kind: m.kind, Section: imagesSection, Name: image, Pos: m.pos, Doc: m.doc,
		Declaration: model.Declaration{File: f.Path, Kind: m.kind.Name, Name: m.name, ConfigMap: m.configMap},
	})
}

// MayDecline reports whether a valid manifest of the kind may declare nothing: see Conversion.Declined.
func (k *Kind) MayDecline() bool { return k.Group == cdiGroup }

var cdiSourcePath = path("spec.source")

// importConverter converts a manifest of CDI.
type importConverter struct{ *converter }

func (c importConverter) dataVolume() {
	has := func(names ...string) int {
		n := 0
		for _, name := range names {
			if c.get(path("spec."+name)) != nil {
				n++
			}
		}
		return n
	}
	filled := has("pvc.dataSource", "pvc.dataSourceRef", "storage.dataSource", "storage.dataSourceRef") > 0
	switch sources := has("source", "sourceRef"); {
	case sources == 2:
		c.problem(cdiSourcePath, "is not used beside sourceRef", "keep one of them")
	case sources == 0 && !filled:
		c.problem(cdiSourcePath, "is missing", "a DataVolume has exactly one of source and sourceRef")
	}
	if has("pvc", "storage") != 1 {
		c.problem(path("spec"), "must have exactly one of pvc and storage", "")
	}
	switch c.Declined = declinedBesideSource(c.doc); {
	case c.Declined != "":
	case has("sourceRef") > 0:
		c.Declined = "names a DataSource, not an image"
	case has("source") == 0:
		c.Declined = "has a volume that another manifest fills"
	}
	c.source()
}

// declinedBesideSource returns why a manifest declares nothing whatever its source is; "": the source decides.
func declinedBesideSource(doc *document.Value) string {
	owners, _ := doc.Find(path("metadata.ownerReferences"), doc.Pos)
	checkpoints, _ := doc.Find(path("spec.checkpoints"), doc.Pos)
	switch {
	case owners != nil && slices.ContainsFunc(owners.Items, func(o *document.Value) bool { return o.TextAt("kind") == machineImageKind.Name }):
		return "belongs to a VirtualMachineImage"
	case doc.TextAt("spec", "contentType") == "archive":
		return "has the contentType archive, which is not an image"
	case checkpoints != nil && len(checkpoints.Items) > 0:
		return "imports its disk in several steps (checkpoints)"
	}
	return ""
}

func (c importConverter) cron() {
	source := path("spec.template.spec.source")
	c.checkRegistry(source.With("registry"))
	c.Declined = declinedSources["pvc"]
	if registry := c.get(source.With("registry")); registry != nil {
		c.Declined = declinedRegistry(registry)
	}
}

// source converts the source of a DataVolume or VolumeImportSource, unless the manifest has declined.
func (c importConverter) source() {
	c.checkRegistry(cdiSourcePath.With("registry"))
	if c.Declined == "" {
		c.Declined = c.whyDeclined()
	}
	if len(c.Problems) > 0 || c.Declined != "" {
		return
	}
	c.imageName(namePath)
	c.track()
	c.warnIfDeleted("Kubernetes")
	kind := c.get(cdiSourcePath).Fields[0].Name
	from := cdiSourcePath.With(kind)
	if kind == "upload" {
		c.copy(path("source.upload"), from)
		c.credentials(kind)
		return
	}
	c.mapping(path("source.download"), from)
	address := c.get(from.With("url"))
	if kind == "s3" {
		forced := *address
		forced.Text = "s3::" + strings.TrimSpace(address.Text)
		address = &forced
	}
	c.set(path("source.download.url"), from.With("url"), address)
	c.checksum(from.With("checksum"), address.Text)
	c.fetchCredentials(from)
}

// declinedSources are the sources that declare no image, with the reasons.
var declinedSources = map[string]string{
	"blank":    "has no image: its volume is empty",
	"pvc":      "copies a volume of Kubernetes",
	"snapshot": "copies a snapshot of Kubernetes",
	"gcs":      "has its image in Google Cloud Storage, which this program does not support as a source",
	"imageio":  "has its image in oVirt, which this program does not support as a source",
	"vddk":     "has its image in VMware, which this program does not support as a source",
}

func declinedRegistry(registry *document.Value) string {
	switch {
	case registry.TextAt("imageStream") != "":
		return "has its image in an ImageStream of OpenShift, which this program does not support as a source"
	case strings.HasPrefix(registry.TextAt("url"), "oci-archive:"):
		return "has its image in a file of another pod"
	}
	return "has its image in a registry, and a registry is not a source yet"
}

// whyDeclined returns why the source of a manifest, which has one, declares no image here; "": it does.
func (c importConverter) whyDeclined() string {
	source, headers := c.get(cdiSourcePath).Fields[0], c.get(cdiSourcePath.With("http").With("extraHeaders"))
	name := LonghornName(c.text(namePath))
	switch {
	case declinedBesideSource(c.doc) != "":
		return declinedBesideSource(c.doc)
	case source.Name == "registry":
		return declinedRegistry(source.Value)
	case declinedSources[source.Name] != "":
		return declinedSources[source.Name]
	case strings.HasPrefix(source.Value.TextAt("url"), "gs:"):
		return declinedSources["gcs"]
	case headers != nil && len(headers.Items) > 0:
		return "has extraHeaders, which may be secrets: the file headers in the folder of the credentials can have them"
	case c.text(cdiSourcePath.With("http").With("insecureSkipVerify")) == "true":
		return "has insecureSkipVerify: an image is only fetched from a server with a valid certificate"
	case ident.CheckName(name) != nil:
		return fmt.Sprintf("has a name that an image cannot have: %v", ident.CheckName(name))
	case c.get(path(sameImageField)) != nil:
		return "declares the same image as the manifest in " + c.text(path(sameImageField))
	}
	return ""
}

// checkRegistry reports what the schema does not.
func (c importConverter) checkRegistry(registry document.Path) {
	if c.get(registry) == nil {
		return
	}
	stream := c.get(registry.With("imageStream")) != nil
	if stream == (c.get(registry.With("url")) != nil) {
		c.problem(registry, "must have exactly one of url and imageStream", "")
	} else if stream && c.text(registry.With("pullMethod")) != "node" {
		c.problem(registry.With("imageStream"), "needs the pullMethod node", "")
	}
}

// checksum converts a checksum, which CDI compares with the bytes that the server sends. If these are packed,
// it is the checksum of the packed file.
func (c importConverter) checksum(from document.Path, address string) {
	algorithm, digits, _ := strings.Cut(strings.ToLower(c.text(from)), ":")
	algorithm = strings.TrimSpace(algorithm)
	native := path("checksum")
	switch {
	case c.get(from) == nil:
		return
	case algorithm == "md5" || algorithm == "sha1":
		c.warn(from, "is not used: "+algorithm+" is too weak", "write a sha256 or a sha512")
		return
	case schema.PackingOf(strings.TrimSpace(address)) != schema.UnpackNone:
		native = path("source.download.packedChecksum")
	}
	checksum := *c.get(from)
	checksum.Text = algorithm + ":" + strings.TrimSpace(digits)
	c.set(native, from, &checksum)
}

// fetchCredentials uses the name of a secret as the name of a folder.
func (c importConverter) fetchCredentials(from document.Path) {
	secret := from.With("secretRef")
	annotation := document.Path{"metadata", "annotations", credentialsAnnotation}
	switch {
	case c.get(secret) != nil && c.get(annotation) != nil:
		c.problem(annotation, "is not used beside secretRef", "keep one of them")
	case c.get(secret) != nil:
		c.copy(path("source.download.credentials"), secret)
	case c.get(annotation) != nil:
		c.copy(path("source.download.credentials"), annotation)
	}
	for name, file := range map[string]string{"certConfigMap": "ca.crt", "secretExtraHeaders": "headers"} {
		if at := from.With(name); c.get(at) != nil {
			c.warn(at, "is not used", "write it to the file "+file+" in the folder of the credentials")
		}
	}
}
