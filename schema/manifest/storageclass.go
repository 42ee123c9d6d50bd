package manifest

import (
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var storageClassKind = &Kind{
	Group: "storage.k8s.io", Versions: []string{"v1"}, Name: "StorageClass", Definition: "#StorageClass",
	Reference: true, ImagePath: path("parameters.backingImage"),
	read: readStorageClass, convert: convertStorageClass,
}

// driver is the CSI driver of Longhorn.
const driver = "driver.longhorn.io"

// classPrefix is the prefix of exactly the parameters of a StorageClass that are about backing images.
const classPrefix = "backingImage"

func readStorageClass(f *File, m manifest) {
	if by := m.doc.Field("provisioner"); by != nil && by.Value.IsScalar() && by.Value.Text != "" && by.Value.Text != driver {
		f.Skip(m.doc, "is of another provisioner than "+driver)
		return
	}
	parameters := m.doc.Field("parameters")
	if parameters == nil || !slices.ContainsFunc(parameters.Value.Fields, func(p document.Field) bool { return strings.HasPrefix(p.Name, classPrefix) }) {
		f.Skip(m.doc, "has no parameter about backing images")
		return
	}
	m, ok := f.named(m)
	if !ok {
		return
	}
	image := parameters.Value.Field("backingImage")
	if image == nil || image.Value.Text == "" {
		f.AddProblem(parameters.Pos, m.kind.ImagePath, "is missing", "it is the name of the image that the other parameters are about")
		return
	}
	m.pos = image.Value.Pos
	problem := parseSourceParameters(parameters.Value)
	d := f.refer(m, LonghornName(image.Value.Text))
	if problem != nil && len(d.Problems) == 0 {
		d.Problems = []document.Problem{*problem}
	}
}

// parseSourceParameters replaces the JSON text with the source's parameters by the mapping
// in the text.
func parseSourceParameters(parameters *document.Value) *document.Problem {
	f := parameters.Field("backingImageDataSourceParameters")
	if f == nil || f.Value.Kind != document.Text || f.Value.Text == "" {
		return nil
	}
	invalid := func(why string) *document.Problem {
		return &document.Problem{Path: document.Path{"parameters", f.Name}, Message: "must be a string with a JSON object: " + why, Hint: `write '{"url": "https://…"}'`}
	}
	parsed, problem := document.ParseJSON("", []byte(f.Value.Text))
	if problem != nil {
		return invalid(problem.Message)
	}
	if parsed.Kind != document.Map {
		return invalid("it is " + parsed.Kind.String())
	}
	pos := f.Value.Pos
	parsed.Relocate(func(document.Position) document.Position { return pos })
	f.Value = parsed
	return nil
}

func convertStorageClass(c *converter) {
	p := path("parameters")
	c.imageName(p.With("backingImage"))
	c.reference(p.With("backingImageDataSourceType"), p.With("backingImageDataSourceParameters"), p.With("backingImageChecksum"))
	c.copyNumber(path("minNumberOfCopies"), p.With("backingImageMinNumberOfCopies"))
	c.copyList(path("nodeSelector"), p.With("backingImageNodeSelector"))
	c.copyList(path("diskSelector"), p.With("backingImageDiskSelector"))
}
