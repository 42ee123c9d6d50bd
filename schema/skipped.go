package schema

import (
	"crypto/sha256"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Manifest identifies a manifest of Kubernetes in a file.
type Manifest struct {
	document.Position
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// Skipped is a manifest that declares nothing here.
type Skipped struct {
	Manifest
	Why string `json:"why"`
	// Image is the image that the document may declare, for example together with a document that
	// is missing; "": none. Copies of the image are kept.
	Image string `json:"image,omitempty"`
	// Withheld is true if the cluster has the image, but no file of it. References to the image declare nothing.
	Withheld bool `json:"-"`
	// Malformed is true if a mistake may hide what the document declares. It may then be meant to
	// declare any image.
	Malformed bool `json:"-"`
	// Sum is a hash of the document.
	Sum [sha256.Size]byte `json:"-"`
	// Origin is the file, or the CUE package, as in model.Declaration.
	Origin string `json:"-"`
	// Foreign is true if this program never reads the kind.
	Foreign bool `json:"-"`
}

// MayDeclare reports whether the document may be meant to declare the image that declaration d
// declared before. A document that is skipped must not delete what it declared.
func (s Skipped) MayDeclare(d model.Declaration) bool {
	switch {
	case s.Origin != d.File:
		return false
	case s.Malformed:
		return true
	case s.Name == "":
		return false
	case s.Foreign:
		// A typing error may have changed the kind.
		return s.Name == document.Printable(d.Name) || s.Name == document.Printable(d.ConfigMap)
	case s.Kind == "ConfigMap":
		return s.Name == document.Printable(d.ConfigMap)
	}
	return s.Kind == d.Kind && s.Name == document.Printable(d.Name)
}
