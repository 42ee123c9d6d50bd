package document

import (
	"bytes"
	"errors"
	"io"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// The YAML parser builds a tree of the whole document, which needs more memory than the Values made of
// it: 60 MiB for 10,000 images. So the large mappings of a document are parsed in parts. The result
// is always that of the whole text: whatever the parts do not decide, the whole text decides.

// partSize is how many bytes a part has at least, and a mapping that is parsed in parts.
const partSize = 64 << 10

// largeMapping is a mapping below a field of the outermost mapping of a document, in lines of their own.
type largeMapping struct {
	line  int // of the name of the field, from 1
	first int // the first line of the mapping
	lines int
	// parts are the lines of the mapping. Each part begins at a field of the mapping.
	parts [][]byte
}

// parseInParts parses text like parseWhole, but each large mapping in parts. It returns false if it
// cannot: there is no such mapping, or any error, or fields that depend on another part.
//
// A part is decided by the same text as in the document. The parser reads a text from its beginning to its
// end, so what it read before a field of a block mapping is complete if the text up to there is valid
// on its own: quotes, brackets and block scalars have ended, and what remains is the mapping.
func parseInParts(file string, data []byte, limits *Limits, partSize int) ([]*Value, bool) {
	rest, mappings := splitMappings(data, partSize)
	if len(mappings) == 0 {
		return nil, false
	}
	left := *limits
	docs, problem := parseWhole(file, rest, &left)
	if problem != nil {
		return nil, false
	}
	r := yamlReader{file: file, limits: &left, part: true}
	for _, m := range mappings {
		field := fieldWithoutValue(docs, m.line)
		if field == nil {
			return nil, false
		}
		r.line = m.first - 1
		for i, part := range m.parts {
			v, ok := r.parsePart(part)
			if !ok || v.Kind != Map {
				return nil, false
			}
			if i == 0 {
				field.Value = v
			} else {
				field.Value.Fields = append(field.Value.Fields, v.Fields...)
			}
			r.line += bytes.Count(part, []byte("\n"))
		}
	}
	*limits = left
	return docs, true
}

// parsePart parses the text of one part. It returns false if the text is not one document without errors.
func (r *yamlReader) parsePart(text []byte) (*Value, bool) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var doc, end yaml.Node
	if decoder.Decode(&doc) != nil || !errors.Is(decoder.Decode(&end), io.EOF) {
		return nil, false
	}
	v, problem := r.node(&doc, 1)
	return v, problem == nil
}

// fieldWithoutValue returns the field at the beginning of a line, if it is one of the outermost mapping
// and has no value.
func fieldWithoutValue(docs []*Value, line int) *Field {
	for _, doc := range docs {
		for i := range doc.Fields {
			if f := &doc.Fields[i]; f.Pos.Line == line && f.Pos.Column == 1 && f.Value.Kind == Null {
				return f
			}
		}
	}
	return nil
}

var (
	mappingName = regexp.MustCompile(`^[A-Za-z]+:[ \t]*(#.*)?$`)
	fieldBegin  = regexp.MustCompile(`^ +["'A-Za-z0-9]`)
	// otherBreaks are the line breaks of YAML except "\n", which splitMappings does not see.
	otherBreaks = [...]string{"\r", "\u0085", "\u2028", "\u2029"}
)

// splitMappings finds the large mappings of a text. It returns the text with empty lines in their place.
func splitMappings(data []byte, partSize int) (rest []byte, mappings []largeMapping) {
	if len(data) < partSize {
		return nil, nil
	}
	for _, b := range otherBreaks {
		if bytes.Contains(data, []byte(b)) {
			return nil, nil
		}
	}
	line := 0
	for len(data) > 0 {
		name := data[:lineEnd(data)]
		rest, data, line = append(rest, name...), data[len(name):], line+1
		if !mappingName.Match(bytes.TrimSuffix(name, []byte("\n"))) {
			continue
		}
		m := largeMapping{line: line, first: line + 1}
		indented := data[:m.split(data, partSize)]
		line += m.lines
		data = data[len(indented):]
		if len(m.parts) > 0 {
			mappings = append(mappings, m)
			rest = append(rest, bytes.Repeat([]byte("\n"), m.lines)...)
		} else {
			rest = append(rest, indented...)
		}
	}
	return rest, mappings
}

// split sets m to the lines at the beginning of data that are indented, empty or comments, and returns their
// length. m has no parts if they are less than partSize bytes, or do not begin with the name of a field.
func (m *largeMapping) split(data []byte, partSize int) int {
	indentation, begin, at := -1, 0, 0 // at: of the present line; begin: of the present part
	for at < len(data) && bytes.IndexByte([]byte(" \t\n#"), data[at]) >= 0 {
		end := at + lineEnd(data[at:])
		text := bytes.TrimLeft(data[at:end], " ")
		content := len(bytes.TrimSpace(text)) > 0 && text[0] != '#'
		isField := content && fieldBegin.Match(data[at:end])
		switch columns := end - at - len(text); {
		case content && indentation < 0 && !isField:
			indentation = 0 // no field has it
		case content && indentation < 0:
			indentation = columns
		case isField && columns == indentation && at-begin >= partSize:
			m.parts = append(m.parts, data[begin:at])
			begin = at
		}
		at = end
		m.lines++
	}
	if indentation > 0 && at >= partSize {
		m.parts = append(m.parts, data[begin:at])
	} else {
		m.parts = nil
	}
	return at
}

// lineEnd returns the length of the first line, with its line break.
func lineEnd(data []byte) int {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1
	}
	return len(data)
}
