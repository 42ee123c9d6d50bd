package schema

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxExpanded bounds the nodes that aliases may repeat in one file, with those in it: a
// few lines of aliases of aliases would otherwise fill the memory.
const maxExpanded = 50_000

// maxDepth bounds how deep values may nest; a configuration needs about ten.
const maxDepth = 100

// parseError is a mistake that makes the rest of a file unreadable.
type parseError struct {
	pos       Position
	msg, hint string
}

func (e *parseError) Error() string { return e.msg }

// parseYAML reads the documents of a YAML file. What comes before a mistake
// is returned with it. What aliases repeat is added to aliased. The error is a
// *parseError.
func parseYAML(file string, data []byte, aliased *int) ([]*value, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	reader := yamlReader{file: file, expanded: aliased}
	var docs []*value
	for {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, yamlError(file, data, err)
		}
		n, err := reader.node(&doc, 0)
		if err != nil {
			return docs, err
		}
		docs = append(docs, n)
	}
}

// yamlReader turns the nodes of one file into ours.
type yamlReader struct {
	file     string
	aliases  int // how many aliases we are inside of
	expanded *int
}

func (r *yamlReader) fail(y *yaml.Node, format string, args ...any) error {
	return &parseError{pos: r.at(y), msg: fmt.Sprintf(format, args...)}
}

func (r *yamlReader) at(y *yaml.Node) Position {
	return Position{File: r.file, Line: y.Line, Column: y.Column}
}

func (r *yamlReader) node(y *yaml.Node, depth int) (*value, error) {
	if depth > maxDepth {
		return nil, r.fail(y, "values nest deeper than %d levels", maxDepth)
	}
	if r.aliases > 0 {
		if *r.expanded++; *r.expanded > maxExpanded {
			return nil, r.fail(y, "aliases repeat more than %d values", maxExpanded)
		}
	}
	switch y.Kind {
	case yaml.DocumentNode:
		return r.node(y.Content[0], depth)
	case yaml.AliasNode:
		r.aliases++
		defer func() { r.aliases-- }()
		n, err := r.node(y.Alias, depth+1)
		if err == nil {
			n.pos = r.at(y)
		}
		return n, err
	case yaml.MappingNode, yaml.SequenceNode:
		if tag := y.ShortTag(); tag != "!!map" && tag != "!!seq" {
			return nil, r.fail(y, "the tag %s has no meaning here", printable(tag))
		}
		if y.Kind == yaml.SequenceNode {
			return r.list(y, depth)
		}
		return r.mapping(y, depth)
	case yaml.ScalarNode:
		return r.scalar(y)
	}
	return &value{kind: nullKind, pos: r.at(y)}, nil // a document without a value
}

func (r *yamlReader) list(y *yaml.Node, depth int) (*value, error) {
	n := &value{kind: listKind, pos: r.at(y), items: make([]*value, 0, len(y.Content))}
	for _, c := range y.Content {
		item, err := r.node(c, depth+1)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, item)
	}
	return n, nil
}

func (r *yamlReader) mapping(y *yaml.Node, depth int) (*value, error) {
	n := &value{kind: mapKind, pos: r.at(y), fields: make([]field, 0, len(y.Content)/2)}
	var merged []field
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		value, err := r.node(y.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		if key.Kind == yaml.MappingNode {
			return nil, &parseError{pos: r.at(key), msg: "a field's name has to be a text", hint: "a template has to be rendered before"}
		}
		if key.Kind != yaml.ScalarNode {
			return nil, r.fail(key, "a field's name has to be a text")
		}
		if key.ShortTag() == "!!merge" {
			if merged, err = r.merge(merged, value); err != nil {
				return nil, err
			}
			continue
		}
		n.fields = append(n.fields, field{name: key.Value, pos: r.at(y.Content[i]), value: value})
	}
	n.addMissing(merged)
	return n, nil
}

// addMissing appends the fields of other mappings that v does not have itself.
func (v *value) addMissing(others []field) {
	if len(others) == 0 {
		return
	}
	own := make(map[string]bool, len(v.fields))
	for _, f := range v.fields {
		own[f.name] = true
	}
	for _, f := range others {
		if !own[f.name] {
			own[f.name] = true
			v.fields = append(v.fields, f)
		}
	}
}

// merge collects what "<<" brings in: a mapping, or a list of them of which
// the first one that has a field wins.
func (r *yamlReader) merge(merged []field, from *value) ([]field, error) {
	sources := from.items
	if from.kind == mapKind {
		sources = []*value{from}
	} else if from.kind != listKind {
		return nil, &parseError{pos: from.pos, msg: "\"<<\" has to name a mapping"}
	}
	for _, s := range sources {
		if s.kind != mapKind {
			return nil, &parseError{pos: s.pos, msg: "\"<<\" has to name a mapping"}
		}
		merged = append(merged, s.fields...)
	}
	return merged, nil
}

func (r *yamlReader) scalar(y *yaml.Node) (*value, error) {
	n := &value{kind: textKind, text: y.Value, pos: r.at(y), block: y.Style&yaml.LiteralStyle != 0}
	switch tag := y.ShortTag(); tag {
	case "!!str", "!!timestamp", "!!merge":
	case "!!null":
		n.kind = nullKind
	case "!!bool":
		// The written form may be True or TRUE.
		n.kind = boolKind
		n.text = strconv.FormatBool(y.Value[0] == 't' || y.Value[0] == 'T')
	case "!!int", "!!float":
		n.kind, n.number = numberKind, yamlNumber(y)
	default:
		return nil, r.fail(y, "the tag %s has no meaning here", printable(tag))
	}
	return n, nil
}

// yamlNumber returns nil for what no field can be: .inf, .nan.
func yamlNumber(y *yaml.Node) any {
	var whole int64
	if y.ShortTag() == "!!int" && y.Decode(&whole) == nil {
		return whole
	}
	var real float64
	if err := y.Decode(&real); err != nil || math.IsInf(real, 0) || math.IsNaN(real) {
		return nil
	}
	return real
}

var (
	yamlWords     = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)`)
	conflict      = regexp.MustCompile(`^(<<<<<<<|=======|>>>>>>>)`)
	unknownAnchor = regexp.MustCompile(`unknown anchor '(.*)' referenced`)
)

func yamlError(file string, data []byte, err error) error {
	e := &parseError{pos: Position{File: file}, msg: err.Error()}
	m := yamlWords.FindStringSubmatch(err.Error())
	if m == nil {
		return e
	}
	e.msg = "not valid YAML: " + printable(m[2])
	if a := unknownAnchor.FindStringSubmatch(m[2]); a != nil {
		if i := bytes.Index(data, []byte("*"+a[1])); i >= 0 {
			e.pos = lineOf(file, data, i)
		}
		return e
	}
	if len(data) > maxSearched {
		e.pos.Line, _ = strconv.Atoi(m[1]) // "" is line 0: not known
		return e
	}
	line, text := stumbles(data, err)
	e.pos.Line, e.pos.Column = line, len(text)-len(bytes.TrimLeft(text, " \t"))+1
	e.hint = yamlHint(m[2], text)
	return e
}

// maxSearched bounds the files that are read several times for the line of a mistake.
const maxSearched = 1 << 20

// stumbles returns the line that the parser cannot read, and what it says: the first one
// up to which the file fails in the same way. Where the parser itself says that it is, the
// mapping or the list around it begins, or the line above that.
func stumbles(data []byte, err error) (int, []byte) {
	lines := bytes.SplitAfter(data, []byte("\n"))
	read := 0
	ends := make([]int, len(lines))
	for i, line := range lines {
		read += len(line)
		ends[i] = read
	}
	i := sort.Search(len(lines)-1, func(i int) bool {
		e := parses(data[:ends[i]])
		return e != nil && e.Error() == err.Error()
	})
	for i > 0 && len(bytes.TrimSpace(lines[i])) == 0 {
		i-- // a file that ends too early does that where its text ends
	}
	return i + 1, bytes.TrimRight(lines[i], "\r\n")
}

func parses(data []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// yamlHint says what is most often meant by the parser's words about a line.
func yamlHint(words string, line []byte) string {
	indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	switch {
	case conflict.Match(line):
		return "git left a conflict there: resolve it"
	case bytes.Contains(indent, []byte("\t")):
		return "indent with spaces: YAML does not allow tabs"
	case strings.Contains(words, "cannot start any token"):
		return "quote a text that begins with @, ` or %"
	case strings.Contains(words, "end of stream"):
		return "close the quotes"
	case strings.Contains(words, "expected ','"), strings.Contains(words, "node content"):
		return "close each bracket, and quote a text with one of , : ? [ ] { } in it"
	case strings.Contains(words, "expected ':'"):
		return "write \"name: value\""
	case strings.Contains(words, "expected key"), strings.Contains(words, "expected '-'"),
		strings.Contains(words, "not allowed in this context"):
		return "indent it as what stands beside it, and put a space after each colon and dash"
	}
	return ""
}
