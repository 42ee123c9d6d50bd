package schema

import (
	"fmt"
	"strings"
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
	by, _ := m.doc.find(fieldPath{"provisioner"}, m.pos)
	parameters := m.doc.child("parameters")
	slip, hint := m.doc.misplaced("parameters", classParameters)
	switch {
	case c.nearProvisioner("provisioner", fieldPath{"provisioner"}, by):
		return
	case by != nil && by.scalar() && by.text == "":
		c.problem(by.pos, fieldPath{"provisioner"}, "is empty", fmt.Sprintf("write %q, or the one that it is of", provisioner))
		return
	case by != nil && by.scalar() && by.text != provisioner:
		c.skip(m.doc, "is of another provisioner than "+provisioner)
		return
	case slip != nil:
		c.problem(slip.pos, fieldPath{slip.name}, "unknown field", hint)
		return
	case parameters != nil && parameters.value.kind != mapKind:
		c.problem(parameters.value.pos, fieldPath{"parameters"}, "has to be a mapping, not "+parameters.value.kind.describe(), "")
		return
	case parameters == nil || !aboutImages(parameters.value):
		c.skip(m.doc, "has no parameter about backing images")
		return
	}
	name := parameters.value.child("backingImage")
	if name == nil || name.value.text == "" {
		if typo := misspelledImage(parameters.value); typo != nil {
			c.problem(typo.pos, fieldPath{"parameters", typo.name}, "unknown field", "did you mean \"backingImage\"?")
		} else {
			c.problem(parameters.pos, at("parameters.backingImage"), "is missing", "it names the image that the other parameters are about")
		}
		return
	}
	m.pos = name.value.pos
	t := c.claim(m, key{imagesSection, longhornName(name.value.text)})
	if f := parseSourceParameters(parameters.value); f != nil && t.verdict == nil {
		t.verdict = &verdict{faults: []fault{*f}}
	}
	t.sum = t.value.sum()
}

// aboutImages reports whether a parameter is one of ours, or nearly.
func aboutImages(parameters *value) bool {
	for _, f := range parameters.fields {
		if strings.HasPrefix(plain(f.name), "backing") || nearest(f.name, classParameters[:1]) != "" {
			return true
		}
	}
	return false
}

// misspelledImage returns a field that was surely meant to name the image.
func misspelledImage(parameters *value) *field {
	for i, f := range parameters.fields {
		if f.name != "backingImage" && nearest(f.name, classParameters) == "backingImage" {
			return &parameters.fields[i]
		}
	}
	return nil
}

// parseSourceParameters puts the mapping in the place of the JSON that it is
// written in.
func parseSourceParameters(parameters *value) *fault {
	f := parameters.child("backingImageDataSourceParameters")
	if f == nil || f.value.kind != textKind || f.value.text == "" {
		return nil
	}
	parsed, err := parseJSON("", []byte(f.value.text))
	if err == nil && parsed.kind != mapKind {
		err = fmt.Errorf("it is %s", parsed.kind.describe())
	}
	if err != nil {
		return &fault{path: fieldPath{"parameters", f.name}, msg: "has to be a JSON object in a text: " + err.Error(), hint: `write '{"url": "https://…"}'`}
	}
	pos := f.value.pos
	parsed.relocate(func(Position) Position { return pos })
	f.value = parsed
	return nil
}

func translateStorageClass(tr *translation) {
	p := at("parameters")
	tr.rename(p.with("backingImage"), tr.text(p.with("backingImage")))
	tr.claims(p.with("backingImageDataSourceType"), p.with("backingImageDataSourceParameters"), p.with("backingImageChecksum"))
	tr.number(at("minNumberOfCopies"), p.with("backingImageMinNumberOfCopies"))
	tr.split(at("nodeSelector"), p.with("backingImageNodeSelector"))
	tr.split(at("diskSelector"), p.with("backingImageDiskSelector"))
	for _, f := range tr.get(p).fields {
		if !strings.HasPrefix(plain(f.name), "backing") {
			continue
		}
		if near := nearest(f.name, classParameters); near != f.name {
			tr.faults = append(tr.faults, fault{path: p.with(f.name), atName: true, msg: "unknown field", hint: didYouMean(f.name, classParameters)})
		}
	}
}
