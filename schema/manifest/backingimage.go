package manifest

import (
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var backingImageKind = &Kind{
	Group: "longhorn.io", Versions: longhornVersions, Name: "BackingImage", Definition: "#BackingImage",
	read: func(f *File, m manifest) {
		m, ok := f.named(m)
		switch {
		case ok && isV2(m.doc):
			f.withhold(m.doc, whyV2, LonghornName(m.name))
			f.withheld = append(f.withheld, (&File{Path: f.Path}).definition(m, imagesSection, LonghornName(m.name), namePath))
		case ok:
			f.define(m, imagesSection, LonghornName(m.name))
		}
	},
	convert: convertBackingImage,
}

const whyV2 = "has the data engine v2, whose images are no files"

func isV2(doc *document.Value) bool { return doc.TextAt("spec", "dataEngine") == "v2" }

// credentialsAnnotation is the annotation with the folder of credentials. Longhorn has no
// field for it.
const credentialsAnnotation = "backing-image-manager/credentials"

// trackAnnotation is the annotation with the field "track" of the native form, as YAML or JSON.
const trackAnnotation = "backing-image-manager/track"

var trackPath = document.Path{"metadata", "annotations", trackAnnotation}

func convertBackingImage(c *converter) {
	c.imageName(namePath)
	c.backingImageSource()
	c.copy(path("minNumberOfCopies"), path("spec.minNumberOfCopies"))
	c.copy(path("nodeSelector"), path("spec.nodeSelector"))
	c.copy(path("diskSelector"), path("spec.diskSelector"))
	c.copy(path("uuid"), path("status.uuid"))
	c.backingImageChecksum()
	c.track()

	if v := c.get(path("spec.secret")); v != nil && c.get(path("spec.secretNamespace")) == nil {
		c.problem(path("spec.secretNamespace"), "is missing", "a secret is identified by its name and its namespace")
	}
	c.warnIfDeleted("Longhorn")
}

// backingImageSource converts the source. It also reads the form of v1beta1, which had only downloads.
func (c *converter) backingImageSource() {
	url, kind := path("spec.imageURL"), path("spec.sourceType")
	if c.get(url) == nil {
		c.source(kind, path("spec.sourceParameters"))
		return
	}
	if c.get(kind) != nil {
		c.source(kind, path("spec.sourceParameters"))
		if c.text(url) != c.text(path("spec.sourceParameters.url")) {
			c.problem(url, "differs from sourceParameters", "remove it: it is the form of an older Longhorn")
		}
		return
	}
	c.mapping(path("source.download"), url)
	c.copy(path("source.download.url"), url)
	c.credentials("download")
}

// backingImageChecksum uses the declared checksum, or else the established checksum of a dump.
// It uses no established checksum of an encrypted image: each encryption has other bytes.
func (c *converter) backingImageChecksum() {
	declared, established := path("spec.checksum"), path("status.checksum")
	encrypts := c.text(path("spec.sourceParameters.encryption")) == encrypt
	from := declared
	if c.get(declared) == nil && c.get(established) != nil && !encrypts {
		from = established
	}
	c.copy(path("checksum"), from)

	// Longhorn sets the uuid before the size and the checksum. Without it, the image would get another uuid.
	size := c.text(path("status.size"))
	isReady := size != "" && size != "0" || c.get(declared) == nil && c.get(established) != nil
	if isReady && c.get(path("status.uuid")) == nil {
		c.problem(path("status.uuid"), "is missing, but the status has the size or the checksum of the file", "add it, or, for a new generation, remove size and checksum, too")
	}
	// A new checksum beside the uuid of the old bytes would declare that the old folder
	// has the new bytes.
	want, err1 := ident.ParseDigest(c.text(declared))
	had, err2 := ident.ParseDigest(c.text(established))
	if err1 != nil || err2 != nil || want.Algorithm() != had.Algorithm() || want == had || encrypts || c.get(path("status.uuid")) == nil {
		return
	}
	c.warn(declared, "differs from status.checksum, which belongs to the file with status.uuid", "for a new generation, remove uuid and checksum from status")
}

// parameter is a parameter of a source: its name in Longhorn, and its name in the native form;
// "": that form does not have it.
type parameter struct{ longhorn, native string }

// sourceType is a kind of source: its name in Longhorn, and in the native form.
type sourceType struct {
	name       string
	native     string
	parameters []parameter
}

// Names of Longhorn. All but exportFromVolume are names of the native form, too.
const (
	download         = "download"
	exportFromVolume = "export-from-volume"
	restore          = "restore"
	clone            = "clone"
	ignore           = "ignore"
	encrypt          = "encrypt"
	exportRaw        = "raw"
)

var sourceTypes = []sourceType{
	{download, download, []parameter{{"url", "url"}}},
	{"upload", "upload", nil},
	{exportFromVolume, "exportFromVolume", []parameter{{"volume-name", "volumeName"}, {"export-type", "exportType"}}},
	{restore, restore, []parameter{{"backup-url", "backupURL"}, {"concurrent-limit", "concurrentLimit"}, {"backup-target-name", ""}}},
	{clone, clone, []parameter{{"backing-image", "backingImage"}, {"encryption", "encryption"}, {"secret", "secret"}, {"secret-namespace", ""}}},
}

func (s sourceType) knownParameters() string {
	var names []string
	for _, p := range s.parameters {
		names = append(names, p.longhorn)
	}
	if len(names) == 0 {
		return "it has no parameters"
	}
	return "known parameters: " + strings.Join(names, ", ")
}

func (s sourceType) has(parameterName string) bool {
	return slices.ContainsFunc(s.parameters, func(p parameter) bool { return p.longhorn == parameterName })
}

// findSourceType returns the source type with that name in Longhorn.
func findSourceType(name string) (sourceType, bool) {
	i := slices.IndexFunc(sourceTypes, func(s sourceType) bool { return s.name == name })
	if i < 0 {
		return sourceType{}, false
	}
	return sourceTypes[i], true
}

// source converts a source. Its type and its parameters are at two paths of the manifest. The
// CUE definition has checked the type.
func (c *converter) source(typeAt, parameters document.Path) {
	if c.get(typeAt) == nil {
		c.problem(typeAt, "is missing", "must be download, upload, export-from-volume, restore or clone")
		return
	}
	s, _ := findSourceType(c.text(typeAt))
	native := document.Path{"source", s.native}
	c.mapping(native, typeAt)
	for _, p := range s.parameters {
		from, to := parameters.With(p.longhorn), native.With(p.native)
		switch p.native {
		case "":
		case "concurrentLimit":
			c.copyNumber(to, from)
		case "backingImage":
			c.copyName(to, from)
		case "secret":
			c.copySecret(to, parameters)
		default:
			c.copy(to, from)
		}
	}
	c.checkParameters(s, parameters)
	c.credentials(s.native)
}

// checkParameters reports parameters of another type of source.
func (c *converter) checkParameters(s sourceType, parameters document.Path) {
	given := c.get(parameters)
	if given == nil {
		return
	}
	for _, f := range given.Fields {
		if f.Value.Text != "" && !s.has(f.Name) {
			c.Problems = append(c.Problems, document.Problem{Path: parameters.With(f.Name), AtName: true,
				Message: "is not a parameter of " + s.name, Hint: s.knownParameters()})
		}
	}
}

// copySecret uses the name of a secret as the name of a folder. A clone without encryption
// needs no secret, although Longhorn repeats the secret of the source image in it.
func (c *converter) copySecret(native, parameters document.Path) {
	encryption := c.text(parameters.With("encryption"))
	if encryption == "" || encryption == ignore {
		return
	}
	from := parameters.With("secret")
	if c.get(from) == nil && c.get(path("spec.secret")) != nil {
		from = path("spec.secret")
	}
	c.copy(native, from)
	if namespace := parameters.With("secret-namespace"); c.get(parameters.With("secret")) != nil && c.get(namespace) == nil {
		c.problem(namespace, "is missing", "a secret is identified by its name and its namespace")
	}
}

func (c *converter) credentials(kind string) {
	from := document.Path{"metadata", "annotations", credentialsAnnotation}
	if c.get(from) == nil {
		return
	}
	if kind != download && kind != restore {
		c.problem(from, "is not used by this kind of source", "remove it")
		return
	}
	c.copy(document.Path{"source", kind, "credentials"}, from)
}

// track reads the trackAnnotation.
func (c *converter) track() {
	from := c.get(trackPath)
	if from == nil {
		return
	}
	docs, problem := document.ParseYAML("", []byte(from.Text), &document.Limits{})
	if problem != nil || len(docs) != 1 || docs[0].Kind != document.Map {
		c.problem(trackPath, "is not a mapping in YAML or JSON", "write the value of the field track, such as '{\"http\": {}}'")
		return
	}
	docs[0].Relocate(func(document.Position) document.Position { return from.Pos })
	c.set(document.Path{"track"}, trackPath, docs[0])
}
