package manifest

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

const cdiGroup = "cdi.kubevirt.io"

var cdiVersions = []string{"v1beta1"}

// Manifests of CDI, which fills volumes with images. A DataVolume or VolumeImportSource declares the image
// that it imports. CDI converts an image to raw, so its volumes never have the bytes that the image has here.
var (
	dataVolumeKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "DataVolume", Definition: "#DataVolume",
		ImagePath: namePath, read: readImport, convert: convertImport,
	}
	importSourceKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "VolumeImportSource", Definition: "#VolumeImportSource",
		ImagePath: namePath, read: readImport, convert: convertImport,
	}
	importCronKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "DataImportCron",
		read: func(f *File, m manifest) {
			f.Skip(m.doc, "has its images in a registry or in volumes of Kubernetes, and these are not sources yet")
		},
	}
	dataSourceKind = &Kind{
		Group: cdiGroup, Versions: cdiVersions, Name: "DataSource", shared: true,
		read: func(f *File, m manifest) {
			f.Skip(m.doc, "names a volume or a snapshot of Kubernetes, not an image")
		},
	}
)

func readImport(f *File, m manifest) {
	m, ok := f.named(m)
	if !ok {
		return
	}
	if why := whyNoImage(m); why != "" {
		f.Skip(m.doc, why)
	} else {
		f.combined = append(f.combined, m)
	}
}

// resolveDataVolumes adds what the manifests of CDI declare. Manifests in different namespaces may have the
// same name. If they have the same source, they declare one image. If not, the image is defined twice.
func (r *resolver) resolveDataVolumes(files []*File) {
	source := func(doc *document.Value) (sum [sha256.Size]byte) {
		if v, _ := doc.Find(cdiSourcePath, doc.Pos); v != nil {
			sum = v.Sum()
		}
		return sum
	}
	first := map[string]manifest{}
	for _, f := range files {
		for _, m := range f.of(dataVolumeKind, importSourceKind) {
			name := LonghornName(m.name)
			same, ok := first[name]
			if ok && source(same.doc) == source(m.doc) {
				r.resolved[f].Skip(m.doc, "declares the same image as the manifest in "+same.pos.String())
				continue
			}
			if !ok {
				first[name] = m
			}
			r.resolved[f].define(m, imagesSection, name)
		}
	}
}

var cdiSourcePath = path("spec.source")

// otherSources are the sources that declare no image, with the reasons.
var otherSources = map[string]string{
	"blank":    "has no image: its volume is empty",
	"pvc":      "copies a volume, not an image",
	"snapshot": "copies a snapshot of Kubernetes",
	"registry": "has its image in a registry, and a registry is not a source yet",
	"gcs":      "has its image in Google Cloud Storage, which this program does not support as a source",
	"imageio":  "has its image in oVirt, which this program does not support as a source",
	"vddk":     "has its image in VMware, which this program does not support as a source",
}

// whyNoImage returns why a manifest declares no image here; "": it does, unless it is invalid.
func whyNoImage(m manifest) string {
	get := func(at string) *document.Value {
		v, _ := m.doc.Find(path(at), m.pos)
		return v
	}
	filled := slices.ContainsFunc([]string{"pvc.dataSource", "pvc.dataSourceRef", "storage.dataSource", "storage.dataSourceRef"},
		func(name string) bool { return get("spec."+name) != nil })
	owners, checkpoints, source := get("metadata.ownerReferences"), get("spec.checkpoints"), get("spec.source")
	switch {
	case owners != nil && slices.ContainsFunc(owners.Items, func(o *document.Value) bool { return o.TextAt("kind") == machineImageKind.Name }):
		return "belongs to a VirtualMachineImage"
	case m.doc.TextAt("spec", "contentType") == "archive":
		return "has the contentType archive, which is not an image"
	case checkpoints != nil && len(checkpoints.Items) > 0:
		return "imports its disk in several steps (checkpoints)"
	case source == nil && get("spec.sourceRef") != nil:
		return "names a DataSource, not an image"
	case source == nil && filled:
		return "has a volume that another manifest fills"
	case source == nil || len(source.Fields) != 1:
		return ""
	}
	headers := get("spec.source.http.extraHeaders")
	nameErr := ident.CheckName(LonghornName(m.name))
	switch kind := source.Fields[0]; {
	case otherSources[kind.Name] != "":
		return otherSources[kind.Name]
	case strings.HasPrefix(kind.Value.TextAt("url"), "gs:"):
		return otherSources["gcs"]
	case headers != nil && len(headers.Items) > 0:
		return "has extraHeaders, which may be secrets: write them to the file \"headers\" in the folder of the credentials"
	case m.doc.TextAt("spec", "source", "http", "insecureSkipVerify") == "true":
		return "has insecureSkipVerify: an image is only fetched from a server with a valid certificate"
	case nameErr != nil:
		return fmt.Sprintf("has a name that an image cannot have: %v", nameErr)
	}
	return ""
}

func convertImport(c *converter) {
	if c.get(path("spec.sourceRef")) != nil {
		c.problem(cdiSourcePath, "is not used beside sourceRef", "keep one of them")
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
	c.servedChecksum(from.With("checksum"), address.Text)
	c.fetchCredentials(from)
}

// servedChecksum converts a checksum, which CDI compares with the bytes that the server sends. If these are packed,
// it is the checksum of the packed file.
func (c *converter) servedChecksum(from document.Path, address string) {
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
func (c *converter) fetchCredentials(from document.Path) {
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
