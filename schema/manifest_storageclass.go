package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var storageClassForm = &form{
	group: "storage.k8s.io", versions: []string{"v1"}, kind: "StorageClass", definition: "#StorageClass",
	claims: true, imageAt: at("parameters.backingImage"),
	read: readStorageClass, translate: translateStorageClass,
}

// provisioner is the one whose classes are about Longhorn's volumes.
const provisioner = "driver.longhorn.io"

// classParameters are those of a StorageClass that are about backing images; a
// class has many others.
var classParameters = []string{
	"backingImage", "backingImageDataSourceType", "backingImageDataSourceParameters", "backingImageChecksum",
	"backingImageMinNumberOfCopies", "backingImageNodeSelector", "backingImageDiskSelector",
}

func readStorageClass(c *content, m manifest) {
	by, _ := m.doc.Find(document.Path{"provisioner"}, m.pos)
	parameters := m.doc.Field("parameters")
	slip, hint := misplaced(m.doc, "parameters", classParameters)
	switch {
	case c.nearProvisioner("provisioner", document.Path{"provisioner"}, by):
		return
	case by != nil && by.IsScalar() && by.Text == "":
		c.problem(by.Pos, document.Path{"provisioner"}, "is empty", fmt.Sprintf("write %q, or the one that it is of", provisioner))
		return
	case by != nil && by.IsScalar() && by.Text != provisioner:
		c.skip(m.doc, "is of another provisioner than "+provisioner)
		return
	case slip != nil:
		c.problem(slip.Pos, document.Path{slip.Name}, "unknown field", hint)
		return
	case parameters != nil && parameters.Value.Kind != document.Map:
		c.problem(parameters.Value.Pos, document.Path{"parameters"}, "has to be a mapping, not "+parameters.Value.Kind.String(), "")
		return
	case parameters == nil || !aboutImages(parameters.Value):
		c.skip(m.doc, "has no parameter about backing images")
		return
	}
	name := parameters.Value.Field("backingImage")
	if name == nil || name.Value.Text == "" {
		if typo := misspelledImage(parameters.Value); typo != nil {
			c.problem(typo.Pos, document.Path{"parameters", typo.Name}, "unknown field", "did you mean \"backingImage\"?")
		} else {
			c.problem(parameters.Pos, at("parameters.backingImage"), "is missing", "it names the image that the other parameters are about")
		}
		return
	}
	m.pos = name.Value.Pos
	t := c.claim(m, key{imagesSection, longhornName(name.Value.Text)})
	if f := parseSourceParameters(parameters.Value); f != nil && t.verdict == nil {
		t.verdict = &verdict{faults: []document.Problem{*f}}
	}
	t.sum = t.value.Sum()
}

// aboutImages reports whether a parameter is one of ours, or nearly.
func aboutImages(parameters *document.Value) bool {
	for _, f := range parameters.Fields {
		if _, near := document.Nearest(f.Name, classParameters[:1]); near || strings.HasPrefix(strings.ToLower(f.Name), "backing") {
			return true
		}
	}
	return false
}

// misspelledImage returns a field that was surely meant to name the image.
func misspelledImage(parameters *document.Value) *document.Field {
	for i, f := range parameters.Fields {
		if near, _ := document.Nearest(f.Name, classParameters); f.Name != "backingImage" && near == "backingImage" {
			return &parameters.Fields[i]
		}
	}
	return nil
}

// parseSourceParameters puts the mapping in the place of the JSON that it is
// written in.
func parseSourceParameters(parameters *document.Value) *document.Problem {
	f := parameters.Field("backingImageDataSourceParameters")
	if f == nil || f.Value.Kind != document.Text || f.Value.Text == "" {
		return nil
	}
	parsed, problem := document.ParseJSON("", []byte(f.Value.Text))
	wrong := ""
	if problem != nil {
		wrong = problem.Message
	} else if parsed.Kind != document.Map {
		wrong = "it is " + parsed.Kind.String()
	}
	if wrong != "" {
		return &document.Problem{Path: document.Path{"parameters", f.Name}, Message: "has to be a JSON object in a text: " + wrong, Hint: `write '{"url": "https://…"}'`}
	}
	pos := f.Value.Pos
	parsed.Relocate(func(document.Position) document.Position { return pos })
	f.Value = parsed
	return nil
}

func translateStorageClass(tr *translation) {
	p := at("parameters")
	tr.rename(p.With("backingImage"), tr.text(p.With("backingImage")))
	tr.claims(p.With("backingImageDataSourceType"), p.With("backingImageDataSourceParameters"), p.With("backingImageChecksum"))
	tr.number(at("minNumberOfCopies"), p.With("backingImageMinNumberOfCopies"))
	tr.split(at("nodeSelector"), p.With("backingImageNodeSelector"))
	tr.split(at("diskSelector"), p.With("backingImageDiskSelector"))
	for _, f := range tr.get(p).Fields {
		if !strings.HasPrefix(strings.ToLower(f.Name), "backing") {
			continue
		}
		if !slices.Contains(classParameters, f.Name) {
			tr.faults = append(tr.faults, document.Problem{Path: p.With(f.Name), AtName: true, Message: "unknown field", Hint: document.DidYouMean(f.Name, classParameters)})
		}
	}
}
