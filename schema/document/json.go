package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sort"
	"strconv"
	"strings"
)

// ParseJSON reads the one document of a JSON file.
func ParseJSON(file string, data []byte) (*Value, *Problem) {
	r := jsonReader{file: file, data: data, decoder: json.NewDecoder(bytes.NewReader(data))}
	r.decoder.UseNumber()
	for i, c := range data {
		if c == '\n' {
			r.lines = append(r.lines, i)
		}
	}
	n, err := r.value(0)
	if err != nil {
		return nil, err
	}
	start := r.next()
	if _, err := r.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, &Problem{Position: r.at(start), Message: "not valid JSON: there is text after the end of the document"}
	}
	return n, nil
}

type jsonReader struct {
	file    string
	data    []byte
	lines   []int // offsets of the line breaks
	decoder *json.Decoder
}

// next returns the offset of the next token.
func (r *jsonReader) next() int {
	i := int(r.decoder.InputOffset())
	for i < len(r.data) && strings.IndexByte(" \t\r\n,:", r.data[i]) >= 0 {
		i++
	}
	return i
}

func (r *jsonReader) at(offset int) Position {
	line := sort.SearchInts(r.lines, offset)
	start := 0
	if line > 0 {
		start = r.lines[line-1] + 1
	}
	return Position{File: r.file, Line: line + 1, Column: offset - start + 1}
}

func (r *jsonReader) token() (json.Token, Position, *Problem) {
	begin, start := int(r.decoder.InputOffset()), r.next()
	t, err := r.decoder.Token()
	if err == nil {
		return t, r.at(start), nil
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Error() != "unexpected end of JSON input" {
		return nil, Position{}, r.syntaxError(syntax, begin)
	}
	e := &Problem{Position: r.at(start), Message: "not valid JSON: " + err.Error()}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		e.Message, e.Hint = "not valid JSON: it ends too early", "close each bracket and each string"
	}
	return nil, e.Position, e
}

// syntaxError finds the position of the character that an error of the parser names: the
// first such character from begin on. The parser's own offset is wrong, because it does
// not count the tokens that were read one by one.
func (r *jsonReader) syntaxError(err *json.SyntaxError, begin int) *Problem {
	at := begin
	for at < len(r.data) && !strings.HasPrefix(err.Error(), "invalid character "+strconv.QuoteRune(rune(r.data[at]))) {
		at++
	}
	if at == len(r.data) {
		at = r.next()
	}
	return &Problem{Position: r.at(at), Message: "not valid JSON: " + err.Error(), Hint: jsonHint(err.Error())}
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
	t, pos, err := r.token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, &Problem{Position: pos, Message: "values nest deeper than " + strconv.Itoa(maxDepth) + " levels"}
	}
	n := &Value{Pos: pos}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return n, r.object(n, depth)
		}
		return n, r.array(n, depth)
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

func (r *jsonReader) object(n *Value, depth int) *Problem {
	n.Kind = Map
	for r.decoder.More() {
		t, pos, err := r.token()
		if err != nil {
			return err
		}
		value, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		n.Fields = append(n.Fields, Field{Name: t.(string), Pos: pos, Value: value})
	}
	_, _, err := r.token()
	return err
}

func (r *jsonReader) array(n *Value, depth int) *Problem {
	n.Kind = List
	for r.decoder.More() {
		item, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		n.Items = append(n.Items, item)
	}
	_, _, err := r.token()
	return err
}
