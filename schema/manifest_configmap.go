package schema

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// configMap reads the files that a ConfigMap has.
func (c *content) configMap(doc *value) {
	data := doc.child("data")
	if data != nil && data.value.kind != mapKind && data.value.kind != nullKind {
		c.problem(data.value.pos, fieldPath{"data"}, "has to be a mapping, not "+data.value.kind.describe(), "")
		return
	}
	if data == nil || data.value.kind == nullKind {
		data = &field{value: &value{kind: mapKind}}
	}
	if f, at := fileElsewhere(doc); f != nil {
		c.problem(f.pos, at, "unknown field", "the files of a ConfigMap belong in \"data\"")
		return
	}
	if at, f := sectionOutside(doc, data.value); f != nil {
		c.ours = true
		c.problem(f.pos, at, "stands in no file of the ConfigMap", "indent it below the name of its file: \"images.yaml: |\"")
		return
	}
	found := c.binaryData(doc)
	files := slices.DeleteFunc(slices.Clone(data.value.fields), func(f field) bool { return !configdir.IsConfig(f.name) })
	switch {
	case slices.ContainsFunc(files, aboutUs):
		c.note(manifest{doc: doc})
		for _, f := range files {
			c.configFile(f)
		}
	case len(files) > 0:
		c.skip(doc, "has no settings, nodes, images or manifests in its data")
	case !found:
		c.skip(doc, "has no *.yaml, *.yml or *.json in its data")
	}
}

// ourWords finds a field of ours, or one that may be meant as one, at the top of
// a document.
var ourWords = regexp.MustCompile(`(?m)^[-\s{"'?]*([A-Za-z_-]+)["']?\s*:`)

// aboutUs reports whether a file in a ConfigMap may be one of ours: other
// programs keep their files in ConfigMaps, too. It is told by words, so that a
// file that cannot be parsed is known as well.
func aboutUs(f field) bool {
	if f.value.kind != textKind {
		return f.value.kind == mapKind && len(f.value.fields) > 0 && nearest(f.value.fields[0].name, sectionNames[:]) != ""
	}
	for _, m := range ourWords.FindAllStringSubmatch(f.value.text, -1) {
		if m[1] == "apiVersion" || nearest(m[1], sectionNames[:]) != "" {
			return true
		}
	}
	return false
}

// fileElsewhere returns a field of a ConfigMap that no ConfigMap has, and that is a file of
// ours or has some in it.
func fileElsewhere(doc *value) (*field, fieldPath) {
	for i, f := range doc.fields {
		switch f.name {
		case "data", "binaryData":
		case "metadata":
			for j, below := range f.value.fields {
				if configdir.IsConfig(below.name) || below.name == "data" && below.value.hasFile() {
					return &f.value.fields[j], fieldPath{f.name, below.name}
				}
			}
		default:
			if configdir.IsConfig(f.name) || f.value.hasFile() {
				return &doc.fields[i], fieldPath{f.name}
			}
		}
	}
	return nil, nil
}

func (v *value) hasFile() bool {
	return slices.ContainsFunc(v.fields, func(f field) bool { return configdir.IsConfig(f.name) })
}

// sectionOutside returns a section of ours that stands beside the files of a ConfigMap:
// it is not indented as it was meant.
func sectionOutside(doc, data *value) (fieldPath, *field) {
	for i, f := range data.fields {
		if f.value.kind != textKind && slices.Contains(sectionNames[:], f.name) {
			return fieldPath{"data", f.name}, &data.fields[i]
		}
	}
	for i, f := range doc.fields {
		if slices.Contains(sectionNames[:], f.name) {
			return fieldPath{f.name}, &doc.fields[i]
		}
	}
	return nil, nil
}

// binaryData reports whether there are files of ours where they cannot be read.
func (c *content) binaryData(doc *value) (found bool) {
	binary := doc.child("binaryData")
	if binary == nil {
		return false
	}
	for _, f := range binary.value.fields {
		if configdir.IsConfig(f.name) {
			found, c.ours = true, true
			c.problem(f.pos, fieldPath{"binaryData", f.name}, "is not read", "put it into data, as text")
		}
	}
	return found
}

// configFile reads a field of a ConfigMap's data as the file that it is once
// the ConfigMap is mounted.
func (c *content) configFile(f field) {
	at := fieldPath{"data", f.name}
	c.ours = true
	switch {
	case f.value.kind != textKind:
		c.problem(f.value.pos, at, "has to be a text, not "+f.value.kind.describe(), "write \"|\" after the colon")
	case c.embedded:
		c.problem(f.pos, at, "is not read: it is in a ConfigMap that is in another one", "put it into a file of its own")
	case path.Ext(f.name) == ".cue":
		c.problem(f.pos, at, "CUE is not read from a manifest", "mount the ConfigMap, or put it into a file of its own")
	case c.expanded+len(f.value.text) > configdir.MaxFile:
		c.problem(f.pos, at, "is too large with what is before it", "put it into a file of its own")
	case strings.TrimSpace(f.value.text) == "":
		c.problem(f.pos, at, "is empty", "remove it, or write \"images: {}\" if that is meant")
	default:
		c.expanded += len(f.value.text)
		c.embed(f)
	}
}

func (c *content) embed(f field) {
	c.embedded = true
	defer func() { c.embedded = false }()
	problems := len(c.problems)
	place := c.placeIn(f)
	docs, err := c.parse(path.Ext(f.name), []byte(f.value.text))
	for _, d := range docs {
		d.relocate(place)
		c.document(d)
	}
	if err != nil {
		c.problem(place(err.pos), fieldPath{"data", f.name}, err.msg, err.hint)
	}
	for i := range c.problems[problems:] {
		// What is wrong with a whole file has no field: the key tells which.
		if p := &c.problems[problems+i]; p.Path == "" {
			p.Path = fieldPath{"data", f.name}.String()
		}
	}
}

// relocate gives v and all that is in it other places.
func (v *value) relocate(place func(Position) Position) {
	v.pos = place(v.pos)
	for i := range v.fields {
		v.fields[i].pos = place(v.fields[i].pos)
		v.fields[i].value.relocate(place)
	}
	for _, i := range v.items {
		i.relocate(place)
	}
}

// placeIn returns where in the user's file a place in a field's text is. A block
// after "|" has the lines of the text, indented. In any other text places are
// not to be found: all are the key's.
func (c *content) placeIn(f field) func(Position) Position {
	indent, is := blockIndent(c.data, f.value)
	if !is {
		return func(Position) Position { return f.pos }
	}
	return func(p Position) Position {
		if p.Line > 0 {
			p.Line += f.value.pos.Line
		}
		if p.Column > 0 {
			p.Column += indent
		}
		return p
	}
}

// blockIndent returns how far the text of a block is indented in the file, and
// false where the text does not stand there line by line.
func blockIndent(data []byte, v *value) (int, bool) {
	if data == nil || !v.block {
		return 0, false
	}
	for range v.pos.Line {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	indent := -1
	for line := range strings.Lines(v.text) {
		var raw []byte
		raw, data, _ = bytes.Cut(data, []byte("\n"))
		line = strings.TrimSuffix(line, "\n")
		before, is := bytes.CutSuffix(bytes.TrimSuffix(raw, []byte("\r")), []byte(line))
		switch {
		case !is:
			return 0, false
		case strings.TrimSpace(line) == "":
		case indent < 0:
			indent = len(before)
		case indent != len(before):
			return 0, false
		}
	}
	return max(indent, 0), true
}
