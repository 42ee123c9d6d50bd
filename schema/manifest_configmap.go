package schema

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// configMap reads the files that a ConfigMap has.
func (c *content) configMap(doc *document.Value) {
	data := doc.Field("data")
	if data != nil && data.Value.Kind != document.Map && data.Value.Kind != document.Null {
		c.problem(data.Value.Pos, document.Path{"data"}, "has to be a mapping, not "+data.Value.Kind.String(), "")
		return
	}
	if data == nil || data.Value.Kind == document.Null {
		data = &document.Field{Value: &document.Value{Kind: document.Map}}
	}
	if f, at := fileElsewhere(doc); f != nil {
		c.problem(f.Pos, at, "unknown field", "the files of a ConfigMap belong in \"data\"")
		return
	}
	if at, f := sectionOutside(doc, data.Value); f != nil {
		c.ours = true
		c.problem(f.Pos, at, "stands in no file of the ConfigMap", "indent it below the name of its file: \"images.yaml: |\"")
		return
	}
	found := c.binaryData(doc)
	files := slices.DeleteFunc(slices.Clone(data.Value.Fields), func(f document.Field) bool { return !configdir.IsConfig(f.Name) })
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
func aboutUs(f document.Field) bool {
	if f.Value.Kind != document.Text {
		return f.Value.Kind == document.Map && len(f.Value.Fields) > 0 && nearSection(f.Value.Fields[0].Name)
	}
	for _, m := range ourWords.FindAllStringSubmatch(f.Value.Text, -1) {
		if m[1] == "apiVersion" || nearSection(m[1]) {
			return true
		}
	}
	return false
}

func nearSection(name string) bool {
	_, near := document.Nearest(name, sectionNames[:])
	return near
}

// fileElsewhere returns a field of a ConfigMap that no ConfigMap has, and that is a file of
// ours or has some in it.
func fileElsewhere(doc *document.Value) (*document.Field, document.Path) {
	for i, f := range doc.Fields {
		switch f.Name {
		case "data", "binaryData":
		case "metadata":
			for j, below := range f.Value.Fields {
				if configdir.IsConfig(below.Name) || below.Name == "data" && hasFile(below.Value) {
					return &f.Value.Fields[j], document.Path{f.Name, below.Name}
				}
			}
		default:
			if configdir.IsConfig(f.Name) || hasFile(f.Value) {
				return &doc.Fields[i], document.Path{f.Name}
			}
		}
	}
	return nil, nil
}

func hasFile(v *document.Value) bool {
	return slices.ContainsFunc(v.Fields, func(f document.Field) bool { return configdir.IsConfig(f.Name) })
}

// sectionOutside returns a section of ours that stands beside the files of a ConfigMap:
// it is not indented as it was meant.
func sectionOutside(doc, data *document.Value) (document.Path, *document.Field) {
	for i, f := range data.Fields {
		if f.Value.Kind != document.Text && slices.Contains(sectionNames[:], f.Name) {
			return document.Path{"data", f.Name}, &data.Fields[i]
		}
	}
	for i, f := range doc.Fields {
		if slices.Contains(sectionNames[:], f.Name) {
			return document.Path{f.Name}, &doc.Fields[i]
		}
	}
	return nil, nil
}

// binaryData reports whether there are files of ours where they cannot be read.
func (c *content) binaryData(doc *document.Value) (found bool) {
	binary := doc.Field("binaryData")
	if binary == nil {
		return false
	}
	for _, f := range binary.Value.Fields {
		if configdir.IsConfig(f.Name) {
			found, c.ours = true, true
			c.problem(f.Pos, document.Path{"binaryData", f.Name}, "is not read", "put it into data, as text")
		}
	}
	return found
}

// configFile reads a field of a ConfigMap's data as the file that it is once
// the ConfigMap is mounted.
func (c *content) configFile(f document.Field) {
	at := document.Path{"data", f.Name}
	c.ours = true
	switch {
	case f.Value.Kind != document.Text:
		c.problem(f.Value.Pos, at, "has to be a text, not "+f.Value.Kind.String(), "write \"|\" after the colon")
	case c.embedded:
		c.problem(f.Pos, at, "is not read: it is in a ConfigMap that is in another one", "put it into a file of its own")
	case path.Ext(f.Name) == ".cue":
		c.problem(f.Pos, at, "CUE is not read from a manifest", "mount the ConfigMap, or put it into a file of its own")
	case c.expanded+len(f.Value.Text) > configdir.MaxFile:
		c.problem(f.Pos, at, "is too large with what is before it", "put it into a file of its own")
	case strings.TrimSpace(f.Value.Text) == "":
		c.problem(f.Pos, at, "is empty", "remove it, or write \"images: {}\" if that is meant")
	default:
		c.expanded += len(f.Value.Text)
		c.embed(f)
	}
}

func (c *content) embed(f document.Field) {
	c.embedded = true
	defer func() { c.embedded = false }()
	problems := len(c.problems)
	place := c.placeIn(f)
	docs, err := c.parse(path.Ext(f.Name), []byte(f.Value.Text))
	for _, d := range docs {
		d.Relocate(place)
		c.document(d)
	}
	if err != nil {
		c.problem(place(err.Position), document.Path{"data", f.Name}, err.Message, err.Hint)
	}
	for i := range c.problems[problems:] {
		// What is wrong with a whole file has no field: the key tells which.
		if p := &c.problems[problems+i]; len(p.Path) == 0 {
			p.Path = document.Path{"data", f.Name}
		}
	}
}

// placeIn returns where in the user's file a place in a field's text is. A block
// after "|" has the lines of the text, indented. In any other text places are
// not to be found: all are the key's.
func (c *content) placeIn(f document.Field) func(document.Position) document.Position {
	indent, is := blockIndent(c.data, f.Value)
	if !is {
		return func(document.Position) document.Position { return f.Pos }
	}
	return func(p document.Position) document.Position {
		if p.Line > 0 {
			p.Line += f.Value.Pos.Line
		}
		if p.Column > 0 {
			p.Column += indent
		}
		return p
	}
}

// blockIndent returns how far the text of a block is indented in the file, and
// false where the text does not stand there line by line.
func blockIndent(data []byte, v *document.Value) (int, bool) {
	if data == nil || !v.Block {
		return 0, false
	}
	for range v.Pos.Line {
		_, data, _ = bytes.Cut(data, []byte("\n"))
	}
	indent := -1
	for line := range strings.Lines(v.Text) {
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
