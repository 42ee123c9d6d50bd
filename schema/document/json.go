package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
)

// ParseJSON reads the one document of a JSON file.
func ParseJSON(file string, data []byte) (*Value, *Problem) {
	if p := invalidJSON(file, data); p != nil {
		return nil, p
	}
	r := jsonReader{data: data, decoder: json.NewDecoder(bytes.NewReader(data)), pos: Position{File: file, Line: 1, Column: 1}}
	r.decoder.UseNumber()
	return r.value(0)
}

// invalidJSON returns why the data is not exactly one document, and nil if it is.
func invalidJSON(file string, data []byte) *Problem {
	var document json.RawMessage
	invalid, ok := errors.AsType[*json.SyntaxError](json.Unmarshal(data, &document))
	if !ok {
		return nil
	}
	at := int(invalid.Offset) - 1 // of the byte that the error names
	p := &Problem{Message: "not valid JSON: " + invalid.Error()}
	switch p.Hint = jsonHint(invalid.Error()); {
	case invalid.Error() == "unexpected end of JSON input":
		at, p.Message, p.Hint = len(data), "not valid JSON: it ends too early", "close each bracket and each string"
	case strings.Contains(invalid.Error(), "after top-level value"):
		p.Message, p.Hint = "not valid JSON: there is text after the end of the document", ""
	}
	p.Position = PositionOf(file, data, max(at, 0))
	return p
}

// jsonReader reads the values of a document that is valid.
type jsonReader struct {
	data    []byte
	decoder *json.Decoder
	offset  int // of pos in data
	pos     Position
}

// token returns the next token and its position.
func (r *jsonReader) token() (json.Token, Position) {
	for begin := int(r.decoder.InputOffset()); r.offset < begin || strings.IndexByte(" \t\r\n,:", r.data[r.offset]) >= 0; r.offset++ {
		r.pos.Column++
		if r.data[r.offset] == '\n' {
			r.pos.Line, r.pos.Column = r.pos.Line+1, 1
		}
	}
	t, err := r.decoder.Token()
	if err != nil {
		panic("document: read valid JSON: " + err.Error())
	}
	return t, r.pos
}

// jsonHint returns the most common cause of an error of the parser.
func jsonHint(message string) string {
	has := func(part string) bool { return strings.Contains(message, part) }
	switch {
	case has("'/'"), has("'#'"):
		return "JSON has no comments: use YAML"
	case has(`'\''`):
		return "use double quotes"
	case has("'}' looking"), has("']' looking"):
		return "remove the comma before it"
	case has("after object key:value pair"), has("after array element"):
		return "put a comma before it"
	case has("after object key"):
		return "put a colon before it"
	case has("in string literal"):
		return "close the quotes, and write a tab as \\t"
	}
	return "put strings and the names of fields in double quotes"
}

func (r *jsonReader) value(depth int) (*Value, *Problem) {
	t, pos := r.token()
	if depth > maxDepth {
		return nil, &Problem{Position: pos, Message: "values nest deeper than " + strconv.Itoa(maxDepth) + " levels"}
	}
	n := &Value{Pos: pos}
	switch t := t.(type) {
	case json.Delim:
		return n, r.elements(n, t == '{', depth)
	case nil:
		n.Kind = Null
	case bool:
		n.Kind, n.Text = Bool, strconv.FormatBool(t)
	case string:
		n.Kind, n.Text = Text, t
	case json.Number:
		n.Kind, n.Text, n.Number = Number, t.String(), ParseNumber(t)
	}
	return n, nil
}

// elements reads the rest of a mapping or a list.
func (r *jsonReader) elements(n *Value, isMap bool, depth int) *Problem {
	if n.Kind = List; isMap {
		n.Kind = Map
	}
	for r.decoder.More() {
		var name json.Token
		var pos Position
		if isMap {
			name, pos = r.token()
		}
		value, err := r.value(depth + 1)
		switch {
		case err != nil:
			return err
		case isMap:
			n.Fields = append(n.Fields, Field{Name: name.(string), Pos: pos, Value: value})
		default:
			n.Items = append(n.Items, value)
		}
	}
	r.token() // the bracket at the end
	return nil
}

// ParseNumber returns a JSON number as int64 or float64, and nil if it is too large for both.
func ParseNumber(t json.Number) any {
	if whole, err := t.Int64(); err == nil {
		return whole
	}
	if real, err := t.Float64(); err == nil {
		return real
	}
	return nil
}
