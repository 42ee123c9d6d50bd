package load

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// cloneCheck checks the images that are clones of other images.
type cloneCheck struct {
	merger      *merger
	images      []string                     // the names of the images in force
	encryptions map[string]schema.Encryption // by image: see encryption
}

// check finds a source image that is not declared, and an encryption or decryption
// that was done before.
func (c *cloneCheck) check(d *definition, clone *schema.Clone) {
	if clone == nil || clone.BackingImage == "" {
		return
	}
	source := key{imagesSection, clone.BackingImage}
	at := document.Path{"source", "clone"}
	if c.merger.current[source] == nil && c.merger.declared[source] == nil {
		if !c.merger.fileUnknown { // otherwise it may be in a file that cannot be read
			c.merger.rejectNative(d, document.Problem{Path: at.With("backingImage"),
				Message: fmt.Sprintf("image %q is not declared", clone.BackingImage), Hint: c.merger.suggestions.DidYouMean(clone.BackingImage, c.images)})
		}
		return
	}
	switch before := c.encryption(clone.BackingImage); {
	case before == schema.Encrypt && clone.Encryption == schema.Encrypt:
		c.merger.rejectNative(d, document.Problem{Path: at.With("encryption"), Message: fmt.Sprintf("cannot re-encrypt: %q is encrypted already", clone.BackingImage)})
	case before == schema.Decrypt && clone.Encryption == schema.Decrypt:
		c.merger.rejectNative(d, document.Problem{Path: at.With("encryption"), Message: fmt.Sprintf("cannot re-decrypt: %q is decrypted already", clone.BackingImage)})
	}
}

// encryption follows the chain of clones from an image back to its first source. It returns what
// the last clone in this chain that was not plain did to the bytes, and EncryptionIgnore if there
// is none, whether the first source is encrypted or not.
func (c *cloneCheck) encryption(name string) schema.Encryption {
	if e, known := c.encryptions[name]; known {
		return e
	}
	c.encryptions[name] = schema.EncryptionIgnore // ends a cycle, which checkCycles reports
	d := c.merger.current[key{imagesSection, name}]
	if d == nil || d.checked.image.Source.Clone == nil {
		return schema.EncryptionIgnore
	}
	e := d.checked.image.Source.Clone.Encryption
	if e == schema.EncryptionIgnore {
		e = c.encryption(d.checked.image.Source.Clone.BackingImage)
	}
	c.encryptions[name] = e
	return e
}

// checkCycles finds images that are clones of themselves, through other images.
func (c *cloneCheck) checkCycles() {
	done := map[string]bool{}
	for _, d := range c.merger.all(imagesSection) {
		var chain []string
		at := map[string]int{}
		for name, ok := d.name, true; ok && !done[name]; name, ok = c.clonedFrom(name) {
			if i, again := at[name]; again {
				c.rejectCycle(chain[i:])
				break
			}
			at[name] = len(chain)
			chain = append(chain, name)
		}
		for _, name := range chain {
			done[name] = true
		}
	}
}

// clonedFrom returns the source of a clone, and false if the image is no clone.
func (c *cloneCheck) clonedFrom(name string) (string, bool) {
	d := c.merger.current[key{imagesSection, name}]
	if d == nil || c.merger.stale(d) || d.checked.image.Source.Clone == nil {
		return "", false
	}
	return d.checked.image.Source.Clone.BackingImage, true
}

func (c *cloneCheck) rejectCycle(members []string) {
	for i, name := range members {
		around := slices.Concat(members[i:], members[:i+1])
		if len(around) > 10 {
			around = append(around[:9], "…", name)
		}
		c.merger.rejectNative(c.merger.current[key{imagesSection, name}], document.Problem{Path: document.Path{"source", "clone", "backingImage"},
			Message: "is a clone of itself: " + strings.Join(around, " from "), Hint: "give one of them another source"})
	}
}
