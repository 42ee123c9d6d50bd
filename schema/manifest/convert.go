package manifest

import (
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Conversion is a manifest in the native form. It remembers from where each native value
// comes, so that a problem of the native form can be reported with the field names of the
// manifest.
type Conversion struct {
	Value *document.Value // the native form
	// Problems and Warnings have paths in the manifest.
	Problems, Warnings []document.Problem
	Reference          *Reference // nil for a definition

	sources map[string]document.Path // by native path, also of values that are missing
}

// converter converts a manifest.
type converter struct {
	Conversion
	doc *document.Value
}

// Convert converts a document that is valid by the CUE definition of the kind.
func (k *Kind) Convert(doc *document.Value) *Conversion {
	c := &converter{Conversion{Value: &document.Value{Kind: document.Map, Pos: doc.Pos}, sources: map[string]document.Path{}}, doc}
	k.convert(c)
	return &c.Conversion
}

func pathKey(p document.Path) string { return strings.Join(p, "\x00") }

// get returns the value of the manifest at a path. It returns nil for no value and for an
// empty string.
func (c *converter) get(from document.Path) *document.Value {
	v, _ := c.doc.Find(from, document.Position{})
	if v == nil || v.Kind == document.Text && v.Text == "" {
		return nil
	}
	return v
}

// text returns the text of the manifest at a path, or "".
func (c *converter) text(from document.Path) string {
	if v := c.get(from); v != nil {
		return v.Text
	}
	return ""
}

// copy sets a native value to the value of the manifest at a path, if there is a value.
func (c *converter) copy(native, from document.Path) { c.set(native, from, c.get(from)) }

// set sets a native value that comes from a path in the manifest. For nil it only
// remembers the path, so that a problem of the missing value is reported there.
func (c *converter) set(native, from document.Path, v *document.Value) {
	c.sources[pathKey(native)] = from
	if v == nil {
		return
	}
	parent := c.Value
	for _, step := range native.Parent() {
		f := parent.Field(step)
		if f == nil {
			parent.Fields = append(parent.Fields, document.Field{Name: step, Pos: v.Pos, Value: &document.Value{Kind: document.Map, Pos: v.Pos}})
			f = &parent.Fields[len(parent.Fields)-1]
		}
		parent = f.Value
	}
	parent.Fields = append(parent.Fields, document.Field{Name: native[len(native)-1], Pos: v.Pos, Value: v})
}

// mapping sets a native value to an empty mapping, to which fields are added later. The mapping has the position of the
// value at a path of the manifest.
func (c *converter) mapping(native, from document.Path) {
	c.set(native, from, &document.Value{Kind: document.Map, Pos: c.get(from).Pos})
}

func textValue(text string, pos document.Position) *document.Value {
	return &document.Value{Kind: document.Text, Text: text, Pos: pos}
}

// copyNumber is like copy for a number that the manifest has as a string.
func (c *converter) copyNumber(native, from document.Path) {
	v := c.get(from)
	if v != nil {
		number := *v
		v = &number
		if n, err := strconv.ParseInt(v.Text, 10, 64); err == nil {
			v.Kind, v.Number = document.Number, n
		}
	}
	c.set(native, from, v)
}

// copyList is like copy for a list that the manifest has as a string with commas.
func (c *converter) copyList(native, from document.Path) {
	v := c.get(from)
	if v == nil {
		return
	}
	list := &document.Value{Kind: document.List, Pos: v.Pos}
	for i, part := range strings.Split(v.Text, ",") {
		list.Items = append(list.Items, textValue(part, v.Pos))
		c.sources[pathKey(native.WithIndex(i))] = from
	}
	c.set(native, from, list)
}

// copyName is like copy for the name of an image. It rewrites the name as Longhorn does.
func (c *converter) copyName(native, from document.Path) {
	v := c.get(from)
	if v != nil {
		v = textValue(c.imageName(from), v.Pos)
	}
	c.set(native, from, v)
}

// imageName returns the name of an image at a path, rewritten as Longhorn does. It warns if this changes the name.
func (c *converter) imageName(from document.Path) string {
	name := c.text(from)
	renamed := LonghornName(name)
	if renamed != name {
		c.warn(from, fmt.Sprintf("is %q here, as in Longhorn", renamed), "names are in lower case and have at most 40 characters")
	}
	return renamed
}

// title sets the title of the image to the text at a path. A text that cannot be a title is a warning.
func (c *converter) title(from document.Path) {
	if text := c.text(from); utf8.RuneCountInString(text) > maxTitle || strings.Contains(text, "\n") {
		c.warn(from, fmt.Sprintf("is not used as the title: it has several lines, or more than %d characters", maxTitle), "")
		return
	}
	c.copy(path("title"), from)
}

// warnIfDeleted warns of a manifest that another program is deleting.
func (c *converter) warnIfDeleted(program string) {
	if at := path("metadata.deletionTimestamp"); c.get(at) != nil {
		c.warn(at, "is being deleted in "+program+", but is declared here", "to delete the image, remove the manifest")
	}
}

// maxTitle limits the characters of a title, as in schema.cue.
const maxTitle = 200

func (c *converter) problem(from document.Path, message, hint string) {
	c.Problems = append(c.Problems, document.Problem{Path: from, Message: message, Hint: hint})
}

func (c *converter) warn(from document.Path, message, hint string) {
	c.Warnings = append(c.Warnings, document.Problem{Path: from, Message: message, Hint: hint})
}

// Source returns the path in the manifest from which a native value comes.
func (c *Conversion) Source(native document.Path) document.Path {
	for n := len(native); n > 0; n-- {
		if from, ok := c.sources[pathKey(native[:n])]; ok {
			return append(from[:len(from):len(from)], native[n:]...)
		}
	}
	return namePath
}

// ToManifest returns a problem of the native form as a problem of the manifest.
func (c *Conversion) ToManifest(p document.Problem) document.Problem {
	p.AtName = p.AtName && len(p.Path) > 0
	p.Path = c.Source(p.Path)
	return p
}

// maxName limits the characters in the name of an image.
const maxName = 40

// LonghornName returns the name that Longhorn gives an image whose requested name is
// too long or has upper-case letters.
func LonghornName(name string) string {
	renamed := strings.ToLower(name)
	if len(name) <= maxName {
		return renamed
	}
	sum := sha512.Sum512([]byte(name))
	end := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(renamed[:min(len(renamed), maxName-len(end))], "-") + end
}
