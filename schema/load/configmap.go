package load

import (
	"bytes"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// A ConfigMap in the config directory is read like the folder in which its files appear when it is
// mounted: each *.yaml, *.yml and *.json in its data is a file. Other programs keep their files in
// ConfigMaps, too, so a ConfigMap is read only if one of these files has a top-level field of the
// configuration or is a manifest.

// embeddedFile is a file in the data of a ConfigMap.
type embeddedFile struct {
	field    document.Field
	docs     []*document.Value // with positions in the text
	problem  *document.Problem // why the text after docs cannot be parsed; nil: none
	tooLarge bool              // it is too large together with the files before it
}

// addConfigMap adds what the files in a ConfigMap declare.
func (p *parsedFile) addConfigMap(doc *document.Value) {
	if second := doc.RepeatedField("data", "binaryData"); second != nil {
		p.AddProblem(second.Pos, document.Path{second.Name}, "duplicate field", "keep one of them")
		return
	}
	binary := p.rejectBinaryData(doc)
	var files []embeddedFile
	if data := doc.Field("data"); data != nil {
		for _, f := range data.Value.Fields {
			if configdir.IsConfig(f.Name) {
				files = append(files, p.parseEmbedded(f))
			}
		}
	}
	switch {
	case slices.ContainsFunc(files, embeddedFile.declares):
		p.accepted = true
		p.AddRead(doc)
		for _, f := range files {
			p.addEmbedded(f, doc.TextAt("metadata", "name"))
		}
	case len(files) > 0:
		p.Skip(doc, "has no settings, nodes, images or manifests in its data")
	case !binary:
		p.Skip(doc, "has no *.yaml, *.yml or *.json in its data")
	}
}

// rejectBinaryData adds a problem for each configuration file in binaryData, and reports
// whether there is one.
func (p *parsedFile) rejectBinaryData(doc *document.Value) (found bool) {
	binary := doc.Field("binaryData")
	if binary == nil {
		return false
	}
	for _, f := range binary.Value.Fields {
		if configdir.IsConfig(f.Name) {
			found, p.accepted = true, true
			p.AddProblem(f.Pos, document.Path{"binaryData", f.Name}, "is not read", "move it to data, as text")
		}
	}
	return found
}

func (p *parsedFile) parseEmbedded(f document.Field) embeddedFile {
	e := embeddedFile{field: f}
	if f.Value.Kind != document.Text || path.Ext(f.Name) == ".cue" {
		return e
	}
	if p.weight += document.Weight([]byte(f.Value.Text)); p.weight > maxFileValues {
		e.tooLarge = true
		return e
	}
	e.docs, e.problem = p.documents(path.Ext(f.Name), []byte(f.Value.Text))
	return e
}

// configLine matches a line that this program reads, in a text that cannot be parsed.
var configLine = regexp.MustCompile(`(?m)^["'{\s]*(settings|nodes|images|apiVersion)["']?\s*:`)

// declares reports whether the file has a section of the native form or is a manifest.
func (e embeddedFile) declares() bool {
	isRead := func(v *document.Value) bool {
		return slices.ContainsFunc(v.Fields, func(f document.Field) bool {
			return f.Name == "apiVersion" || slices.Contains(sectionNames[:], f.Name)
		})
	}
	return isRead(e.field.Value) || slices.ContainsFunc(e.docs, isRead) || (e.problem != nil || e.tooLarge) && configLine.MatchString(e.field.Value.Text)
}

// addEmbedded adds what a file in the data of a ConfigMap declares.
func (p *parsedFile) addEmbedded(e embeddedFile, configMap string) {
	f, at := e.field, document.Path{"data", e.field.Name}
	switch {
	case f.Value.Kind != document.Text:
		p.AddProblem(f.Value.Pos, at, "must be a string, not "+f.Value.Kind.String(), "write \"|\" after the colon")
	case p.embedded:
		p.AddProblem(f.Pos, at, "is not read: it is in a ConfigMap within another ConfigMap", "put it into a file")
	case path.Ext(f.Name) == ".cue":
		p.AddProblem(f.Pos, at, "CUE is not read from a manifest", "mount the ConfigMap, or put it into a file")
	case e.tooLarge:
		p.AddProblem(f.Pos, at, "is too large, together with the files before it", "put it into a file")
	case strings.TrimSpace(f.Value.Text) == "":
		p.AddProblem(f.Pos, at, "is empty", "remove it, or write \"images: {}\"")
	default:
		p.addEmbeddedDocuments(e, configMap)
	}
}

func (p *parsedFile) addEmbeddedDocuments(e embeddedFile, configMap string) {
	p.ConfigMap, p.embedded = configMap, true
	defer func() { p.ConfigMap, p.embedded = "", false }()
	at := document.Path{"data", e.field.Name}
	before := len(p.Problems)
	translate := p.positionsIn(e.field)
	for _, doc := range e.docs {
		doc.Relocate(translate)
		p.addDocument(doc)
	}
	if e.problem != nil {
		p.AddProblem(translate(e.problem.Position), at, e.problem.Message, e.problem.Hint)
	}
	for i := range p.Problems[before:] {
		// A problem of a whole document has no path: name the file in the ConfigMap.
		if problem := &p.Problems[before+i]; len(problem.Path) == 0 {
			problem.Path = at
		}
	}
}

// positionsIn returns a function that translates a position in the text of a field to a position
// in the file. A block after "|" has the lines of the text, indented. In any other string
// the lines cannot be found, so every position becomes the position of the field.
func (p *parsedFile) positionsIn(f document.Field) func(document.Position) document.Position {
	indent, ok := p.blockIndent(f.Value)
	if !ok {
		return func(document.Position) document.Position { return f.Pos }
	}
	return func(pos document.Position) document.Position {
		if pos.Line > 0 {
			pos.Line += f.Value.Pos.Line
		}
		if pos.Column > 0 {
			pos.Column += indent
		}
		return pos
	}
}

// blockIndent returns the indentation of the text of a block in the file. It returns false
// if the file does not have the text line by line.
func (p *parsedFile) blockIndent(v *document.Value) (int, bool) {
	if p.data == nil || !v.Block {
		return 0, false
	}
	if p.lines == nil {
		p.lines = []int{0}
		for i, c := range p.data {
			if c == '\n' {
				p.lines = append(p.lines, i+1)
			}
		}
	}
	data := p.data[p.lines[min(v.Pos.Line, len(p.lines)-1)]:]
	indent := -1
	for line := range strings.Lines(v.Text) {
		var raw []byte
		raw, data, _ = bytes.Cut(data, []byte("\n"))
		line = strings.TrimSuffix(line, "\n")
		before, ok := bytes.CutSuffix(bytes.TrimSuffix(raw, []byte("\r")), []byte(line))
		switch {
		case !ok:
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
