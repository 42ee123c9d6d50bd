package load

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// maxClones limits how many clones of clones may be made of an image. A hostile chain must cost little.
const maxClones = 100

// clonesFrom returns the clone that makes an image, then the clone that makes its source image, and so on, each once.
func (m *merger) clonesFrom(name string) (chain []*schema.Clone) {
	for range maxClones {
		d := m.current[key{imagesSection, name}]
		if d == nil || d.checked.image.Source.Clone == nil || slices.Contains(chain, d.checked.image.Source.Clone) {
			break
		}
		chain = append(chain, d.checked.image.Source.Clone)
		name = d.checked.image.Source.Clone.BackingImage
	}
	return chain
}

// checkClone finds a source image that is not among the images, and an encryption or decryption that was done before.
func (m *merger) checkClone(d *definition, clone *schema.Clone, images []string) {
	if clone == nil || clone.BackingImage == "" {
		return
	}
	source := key{imagesSection, clone.BackingImage}
	at := document.Path{"source", "clone"}
	if m.current[source] == nil && m.declared[source] == nil {
		if !m.fileUnknown { // otherwise it may be in a file that cannot be read
			m.rejectNative(d, document.Problem{Path: at.With("backingImage"),
				Message: fmt.Sprintf("image %q is not declared", clone.BackingImage), Hint: m.suggestions.DidYouMean(clone.BackingImage, images)})
		}
		return
	}
	for _, before := range m.clonesFrom(clone.BackingImage) {
		if before.Encryption == schema.EncryptionIgnore {
			continue
		}
		if before.Encryption == clone.Encryption {
			m.rejectNative(d, document.Problem{Path: at.With("encryption"),
				Message: fmt.Sprintf("cannot re-%[1]s: %[2]q is %[1]sed already", clone.Encryption, clone.BackingImage), Hint: "clone another image"})
		}
		return
	}
}

// checkCycles finds images that are clones of themselves, through other images, or of too many others.
func (m *merger) checkCycles() {
	cycles := map[*definition][]string{}
	for _, d := range m.all(imagesSection) {
		names := []string{d.name}
		for i, clone := range m.clonesFrom(d.name) {
			if names = append(names, clone.BackingImage); clone.BackingImage == d.name || i == maxClones-1 {
				cycles[d] = names
				break
			}
		}
	}
	for d, names := range cycles {
		if m.stale(d) {
			continue
		}
		message := "is a clone of itself: "
		if names[len(names)-1] != d.name {
			message = "is a clone of too many others: "
		}
		if len(names) > 11 {
			names = append(names[:9], "…", names[len(names)-1])
		}
		m.rejectNative(d, document.Problem{Path: document.Path{"source", "clone", "backingImage"},
			Message: message + strings.Join(names, " from "), Hint: "give one of these images another source"})
	}
}
