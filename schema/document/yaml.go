package document

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// MaxAliased limits the values that the aliases of one file may repeat. Each textOfValue bytes of a text count
// as another value: a repeated text needs no memory, but it is hashed and checked each time.
const (
	MaxAliased  = 50_000
	textOfValue = 64
)

// Limits limit what the parsing of YAML may cost. The caller may pass the same Limits for several
// texts. Then they apply to all of these texts together.
type Limits struct {
	// Aliased is how many more values aliases may repeat, nested values included. Without this limit,
	// a few lines of aliases of aliases would fill the memory. For a file, it begins at MaxAliased.
	Aliased int
	// Search is how many more bytes may be parsed again to find the line of an error.
	Search int
}

// maxDepth limits how deep values may nest. A configuration needs about ten levels.
const maxDepth = 100

// ParseYAML reads the documents of a YAML file. If there is a problem, it also returns the
// documents before the problem. It subtracts from the limits what it uses.
func ParseYAML(file string, data []byte, limits *Limits) ([]*Value, *Problem) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	reader := yamlReader{file: file, limits: limits}
	var docs []*Value
	for {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return docs, yamlError(file, data, err, limits)
		}
		n, p := reader.node(&doc, 0)
		if p != nil {
			return docs, p
		}
		docs = append(docs, n)
	}
}

// yamlReader converts the nodes of one file to values.
type yamlReader struct {
	file   string
	depth  int // of the aliases around the current node
	limits *Limits
	names  map[string]string // of fields: each name is kept in memory once, although many fields have it
}

func (r *yamlReader) fail(y *yaml.Node, format string, args ...any) *Problem {
	return &Problem{Position: r.at(y), Message: fmt.Sprintf(format, args...)}
}

func (r *yamlReader) at(y *yaml.Node) Position {
	return Position{File: r.file, Line: y.Line, Column: y.Column}
}

func (r *yamlReader) node(y *yaml.Node, depth int) (*Value, *Problem) {
	if depth > maxDepth {
		return nil, r.fail(y, "values nest deeper than %d levels", maxDepth)
	}
	if r.depth > 0 {
		if p := r.repeat(y, 1); p != nil {
			return nil, p
		}
	}
	switch y.Kind {
	case yaml.DocumentNode:
		return r.node(y.Content[0], depth)
	case yaml.AliasNode:
		r.depth++
		defer func() { r.depth-- }()
		n, err := r.node(y.Alias, depth+1)
		if err == nil {
			n.Pos = r.at(y)
		}
		return n, err
	case yaml.MappingNode, yaml.SequenceNode:
		if tag := y.ShortTag(); tag != "!!map" && tag != "!!seq" {
			return nil, r.fail(y, "the tag %s is not supported", Printable(tag))
		}
		if y.Kind == yaml.SequenceNode {
			return r.list(y, depth)
		}
		return r.mapping(y, depth)
	case yaml.ScalarNode:
		return r.scalar(y)
	}
	return &Value{Kind: Null, Pos: r.at(y)}, nil // a document without a value
}

// repeat subtracts from the limit what an alias repeats at node y: the number of values, and the text of the node.
func (r *yamlReader) repeat(y *yaml.Node, values int) *Problem {
	if r.limits.Aliased -= values + len(y.Value)/textOfValue; r.limits.Aliased < 0 {
		return r.fail(y, "aliases repeat more than %d values, or too much text", MaxAliased)
	}
	return nil
}

func (r *yamlReader) list(y *yaml.Node, depth int) (*Value, *Problem) {
	n := &Value{Kind: List, Pos: r.at(y), Items: make([]*Value, 0, len(y.Content))}
	for _, c := range y.Content {
		item, err := r.node(c, depth+1)
		if err != nil {
			return nil, err
		}
		n.Items = append(n.Items, item)
	}
	return n, nil
}

func (r *yamlReader) mapping(y *yaml.Node, depth int) (*Value, *Problem) {
	n := &Value{Kind: Map, Pos: r.at(y), Fields: make([]Field, 0, len(y.Content)/2)}
	var merged []Field
	for i := 0; i+1 < len(y.Content); i += 2 {
		key := y.Content[i]
		value, err := r.node(y.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		repeated := r.depth > 0
		if key.Kind == yaml.AliasNode {
			key, repeated = key.Alias, true
		}
		if repeated {
			if p := r.repeat(key, 0); p != nil {
				return nil, p
			}
		}
		if key.Kind == yaml.MappingNode {
			return nil, &Problem{Position: r.at(key), Message: "the name of a field must be a string", Hint: "render the template first"}
		}
		if key.Kind != yaml.ScalarNode {
			return nil, r.fail(key, "the name of a field must be a string")
		}
		if key.ShortTag() == "!!merge" {
			if merged, err = r.merge(merged, value); err != nil {
				return nil, err
			}
			continue
		}
		n.Fields = append(n.Fields, Field{Name: r.name(key.Value), Pos: r.at(y.Content[i]), Value: value})
	}
	addMissing(n, merged)
	return n, nil
}

// name returns the name. All equal names share the memory of one string.
func (r *yamlReader) name(s string) string {
	known, ok := r.names[s]
	if !ok {
		if r.names == nil {
			r.names = map[string]string{}
		}
		r.names[s], known = s, s
	}
	return known
}

// merge collects the fields that "<<" adds: the fields of a mapping, or of a list of mappings.
// The first mapping with a field has precedence.
func (r *yamlReader) merge(merged []Field, from *Value) ([]Field, *Problem) {
	sources := from.Items
	if from.Kind == Map {
		sources = []*Value{from}
	} else if from.Kind != List {
		return nil, &Problem{Position: from.Pos, Message: "\"<<\" must refer to a mapping"}
	}
	for _, s := range sources {
		if s.Kind != Map {
			return nil, &Problem{Position: s.Pos, Message: "\"<<\" must refer to a mapping"}
		}
		merged = append(merged, s.Fields...)
	}
	return merged, nil
}

func (r *yamlReader) scalar(y *yaml.Node) (*Value, *Problem) {
	n := &Value{Kind: Text, Text: y.Value, Pos: r.at(y), Block: y.Style&yaml.LiteralStyle != 0}
	switch tag := y.ShortTag(); tag {
	case "!!str", "!!timestamp", "!!merge":
	case "!!null":
		n.Kind = Null
	case "!!bool":
		// The written form may be True or TRUE.
		n.Kind = Bool
		n.Text = strconv.FormatBool(y.Value[0] == 't' || y.Value[0] == 'T')
	case "!!int", "!!float":
		n.Kind, n.Number = Number, yamlNumber(y)
	default:
		return nil, r.fail(y, "the tag %s is not supported", Printable(tag))
	}
	return n, nil
}

// yamlNumber returns nil for .inf and .nan, which no field accepts.
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
	parserMessage = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)`)
	conflictMark  = regexp.MustCompile(`(?m)^(<<<<<<<|>>>>>>>)[ \r\n]`)
	colonInValue  = regexp.MustCompile(`^\s*(-\s+)*[^\s:"'{\[]+:\s+[^\s"'{\[|>].*:(\s|$)`)
	unknownAnchor = regexp.MustCompile(`unknown anchor '(.*)' referenced`)
)

// yamlError converts an error of the YAML parser. It finds the exact position, and adds a
// hint.
func yamlError(file string, data []byte, err error, limits *Limits) *Problem {
	e := &Problem{Position: Position{File: file}, Message: err.Error()}
	m := parserMessage.FindStringSubmatch(err.Error())
	if m == nil {
		return e
	}
	e.Message = "not valid YAML: " + Printable(m[2])
	if a := unknownAnchor.FindStringSubmatch(m[2]); a != nil {
		if i := bytes.Index(data, []byte("*"+a[1])); i >= 0 {
			e.Position = PositionOf(file, data, i)
		}
		return e
	}
	// The parser may name a later line, because a mark can be read as text.
	if at := conflictMark.FindIndex(data); at != nil {
		e.Position, e.Hint = PositionOf(file, data, at[0]), "resolve the git merge conflict"
		return e
	}
	search := len(data) * bits.Len(uint(bytes.Count(data, []byte("\n")))) / 2 // half of the file on average
	if search > limits.Search {
		e.Position.Line, _ = strconv.Atoi(m[1]) // "" becomes line 0: unknown
		return e
	}
	limits.Search -= search
	line, text := firstInvalidLine(data, err)
	e.Position.Line, e.Position.Column = line, len(text)-len(bytes.TrimLeft(text, " \t"))+1
	e.Hint = yamlHint(m[2], text)
	return e
}

// firstInvalidLine returns the line that the parser cannot read, and its text. If the file ended
// after this line, it would fail with the same error; if it ended before, it would not. The parser
// itself names the line where the mapping or list around it begins, or the line above that line.
func firstInvalidLine(data []byte, err error) (int, []byte) {
	lines := bytes.SplitAfter(data, []byte("\n"))
	read := 0
	ends := make([]int, len(lines))
	for i, line := range lines {
		read += len(line)
		ends[i] = read
	}
	i := sort.Search(len(lines)-1, func(i int) bool {
		e := parseAll(data[:ends[i]])
		return e != nil && e.Error() == err.Error()
	})
	for i > 0 && len(bytes.TrimSpace(lines[i])) == 0 {
		i-- // the error of a file that ends too early is at the end of its text
	}
	return i + 1, bytes.TrimRight(lines[i], "\r\n")
}

func parseAll(data []byte) error {
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

// yamlHint returns how to correct the most common cause of an error of the parser in a line.
func yamlHint(message string, line []byte) string {
	indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	switch {
	case bytes.Contains(indent, []byte("\t")):
		return "indent with spaces: YAML does not allow tabs"
	case strings.Contains(message, "cannot start any token"):
		return "quote a string that begins with @, ` or %"
	case strings.Contains(message, "end of stream"):
		return "close the quotes"
	case strings.Contains(message, "expected ','"), strings.Contains(message, "node content"):
		return "close each bracket, and quote a string that contains one of , : ? [ ] { }"
	case strings.Contains(message, "expected ':'"):
		return "write \"name: value\""
	case strings.Contains(message, "expected <document start>"):
		return "indent this line like the lines above it, and begin each document with ---"
	case strings.Contains(message, "not allowed in this context") && colonInValue.Match(line):
		return "quote the value, because it contains a colon: \"…: …\""
	case strings.Contains(message, "expected key"), strings.Contains(message, "expected '-'"),
		strings.Contains(message, "not allowed in this context"):
		return "indent it like the lines around it, and put a space after each colon and dash"
	}
	return ""
}

// addMissing appends to mapping v the fields of other mappings that v does not have.
func addMissing(v *Value, others []Field) {
	if len(others) == 0 {
		return
	}
	own := make(map[string]bool, len(v.Fields))
	for _, f := range v.Fields {
		own[f.Name] = true
	}
	for _, f := range others {
		if !own[f.Name] {
			own[f.Name] = true
			v.Fields = append(v.Fields, f)
		}
	}
}
