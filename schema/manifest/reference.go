package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Reference is the part of a manifest that refers to an image. If no other document defines
// the image, the reference defines it. Otherwise the reference must match the definition by
// Longhorn's rule: the type of source must be the same, also the parameters if the manifest
// has any, and also the checksum if both have one.
type Reference struct {
	// Paths in the manifest.
	typeAt, parametersAt, checksumAt document.Path

	sourceType string            // "" if the manifest only names the image
	parameters map[string]string // nil if there are none
	checksum   ident.Digest
	// compared has the paths of the parameters to compare. nil means all parameters at parametersAt.
	compared map[string]document.Path
	// incomplete is why the reference cannot define the image. "" means that it can.
	incomplete string
}

// reference converts a reference. The manifest has the type of source, the parameters and the
// checksum at these paths.
func (c *converter) reference(typeAt, parametersAt, checksumAt document.Path) {
	r := &Reference{typeAt: typeAt, parametersAt: parametersAt, checksumAt: checksumAt, sourceType: c.text(typeAt)}
	c.Reference = r
	c.copy(path("checksum"), checksumAt)
	r.setChecksum(c.text(checksumAt))
	if given := c.get(parametersAt); given != nil && r.sourceType != "" {
		r.parameters = map[string]string{}
		for _, f := range given.Fields {
			r.parameters[f.Name] = strings.TrimSpace(f.Value.Text)
		}
	}
	r.incomplete = r.missing()
	if r.sourceType != "" && r.incomplete == "" {
		c.source(typeAt, parametersAt)
		return
	}
	if s, ok := findSourceType(r.sourceType); ok {
		c.checkParameters(s, parametersAt)
	}
	c.placeholder(typeAt)
}

// placeholder sets any source: without a source, the checks of an image would not check the rest of the reference.
func (c *converter) placeholder(typeAt document.Path) {
	c.set(path("source.upload"), typeAt, &document.Value{Kind: document.Map, Pos: c.doc.Pos})
}

// setChecksum sets the checksum to a text, if the text is a checksum.
func (r *Reference) setChecksum(text string) {
	if digest, err := ident.ParseDigest(text); err == nil {
		r.checksum = digest
	}
}

// missing returns why the reference cannot define an image. "" means that it can.
func (r *Reference) missing() string {
	switch {
	case r.sourceType == download && r.parameters["url"] == "":
		return "download URL is not provided"
	case r.sourceType == exportFromVolume && r.parameters["volume-name"] == "":
		return "the volume to export is not provided"
	case r.sourceType != "" && r.sourceType != download && r.sourceType != exportFromVolume:
		return r.sourceType + " is not supported via CSI"
	}
	return ""
}

// Defines reports whether the reference defines its image if no other document does.
func (r *Reference) Defines() bool { return r.sourceType != "" && r.incomplete == "" }

// HasChecksum reports whether the reference has a checksum.
func (r *Reference) HasChecksum() bool { return !r.checksum.IsZero() }

// Undeclared returns the problem of a reference to an image that no document defines.
func (r *Reference) Undeclared(imagePath document.Path, image, hint string) document.Problem {
	p := document.Problem{Path: imagePath, Message: fmt.Sprintf("image %q is not declared", image), Hint: hint}
	if r.sourceType != "" {
		p.Path = r.typeAt
		p.Message += ", and this document cannot declare it: " + r.incomplete
	}
	return p
}

// defaultParameters are the values that Longhorn sets.
var defaultParameters = map[string]string{"export-type": exportRaw, "concurrent-limit": "2", "encryption": ignore}

// Mismatch returns the difference between the reference and the definition of its image. The arguments native and checksum
// are that definition in the native form, and its checksum.
func (r *Reference) Mismatch(image string, native *document.Value, checksum ident.Digest) (problem document.Problem, differs bool) {
	hint := "Longhorn rejects a volume whose image differs from the existing one"
	if r.compared != nil {
		hint = "the BackingImage defines the image: correct the other manifest"
	}
	i := slices.IndexFunc(sourceTypes, func(s sourceType) bool {
		v, _ := native.Find(path("source").With(s.native), native.Pos)
		return v != nil
	})
	defined := sourceTypes[i]
	if r.sourceType != "" && r.sourceType != defined.name {
		return document.Problem{Path: r.typeAt, Message: fmt.Sprintf("data source is different: image %q has the source type %s", image, defined.name), Hint: hint}, true
	}
	for _, p := range defined.parameters {
		at, isCompared := r.compared[p.longhorn]
		if r.compared == nil {
			at, isCompared = r.parametersAt.With(p.longhorn), true
		}
		if r.sourceType == "" || len(r.parameters) == 0 || !isCompared || p.native == "" {
			continue
		}
		value := cmp.Or(r.parameters[p.longhorn], defaultParameters[p.longhorn])
		if p.longhorn == "backing-image" {
			value = LonghornName(value)
		}
		if value != cmp.Or(strings.TrimSpace(native.TextAt("source", defined.native, p.native)), defaultParameters[p.longhorn]) {
			return document.Problem{Path: at, Message: fmt.Sprintf("data source is different: image %q has another %s", image, p.longhorn), Hint: hint}, true
		}
	}
	if r.checksum.IsZero() || checksum.IsZero() || r.checksum.Algorithm() != checksum.Algorithm() || r.checksum == checksum {
		return document.Problem{}, false
	}
	return document.Problem{Path: r.checksumAt, Message: fmt.Sprintf("checksum mismatch: image %q has another checksum", image), Hint: hint}, true
}
