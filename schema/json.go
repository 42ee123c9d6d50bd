package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sort"
	"strconv"
	"strings"
)

// parseJSON reads the one document of a JSON file. The error is a *parseError.
func parseJSON(file string, data []byte) (*value, error) {
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
		return nil, &parseError{pos: r.at(start), msg: "not valid JSON: more after the end of the document"}
	}
	return n, nil
}

type jsonReader struct {
	file    string
	data    []byte
	lines   []int // offsets of the line ends
	decoder *json.Decoder
}

// next returns where the next token begins.
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

func (r *jsonReader) token() (json.Token, Position, error) {
	begin, start := int(r.decoder.InputOffset()), r.next()
	t, err := r.decoder.Token()
	if err == nil {
		return t, r.at(start), nil
	}
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok && syntax.Error() != "unexpected end of JSON input" {
		return nil, Position{}, r.notJSON(syntax, begin)
	}
	e := &parseError{pos: r.at(start), msg: "not valid JSON: " + err.Error()}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		e.msg = "not valid JSON: it ends in the middle"
	}
	return nil, e.pos, e
}

// notJSON places a mistake at the character that it tells of, the first such one from
// begin on: the parser's own offset leaves out what it read as single tokens.
func (r *jsonReader) notJSON(err *json.SyntaxError, begin int) error {
	at := begin
	for at < len(r.data) && !strings.HasPrefix(err.Error(), "invalid character "+strconv.QuoteRune(rune(r.data[at]))) {
		at++
	}
	if at == len(r.data) {
		at = r.next()
	}
	return &parseError{pos: r.at(at), msg: "not valid JSON: " + err.Error(), hint: jsonHint(err.Error())}
}

// jsonHint says what is most often meant by the parser's words.
func jsonHint(words string) string {
	is := func(part string) bool { return strings.Contains(words, part) }
	switch {
	case is("'/'"), is("'#'"):
		return "JSON has no comments; YAML has"
	case is(`'\''`):
		return "JSON has double quotes only"
	case is("'}' looking"), is("']' looking"):
		return "remove the comma before it"
	case is("after object key:value pair"), is("after array element"):
		return "put a comma before it"
	case is("after object key"):
		return "put a colon before it"
	case is("in string literal"):
		return "close the quotes, and write a tab as \\t"
	}
	return "put a text and the name of a field in double quotes"
}

func (r *jsonReader) value(depth int) (*value, error) {
	t, pos, err := r.token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, &parseError{pos: pos, msg: "values nest deeper than " + strconv.Itoa(maxDepth) + " levels"}
	}
	n := &value{pos: pos}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return n, r.object(n, depth)
		}
		return n, r.array(n, depth)
	case nil:
		n.kind = nullKind
	case bool:
		n.kind, n.text = boolKind, strconv.FormatBool(t)
	case string:
		n.kind, n.text = textKind, t
	case json.Number:
		n.kind, n.text, n.number = numberKind, t.String(), jsonNumber(t)
	}
	return n, nil
}

// jsonNumber returns nil for a number that is too large.
func jsonNumber(t json.Number) any {
	if whole, err := t.Int64(); err == nil {
		return whole
	}
	if real, err := t.Float64(); err == nil {
		return real
	}
	return nil
}

func (r *jsonReader) object(n *value, depth int) error {
	n.kind = mapKind
	for r.decoder.More() {
		t, pos, err := r.token()
		if err != nil {
			return err
		}
		value, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		n.fields = append(n.fields, field{name: t.(string), pos: pos, value: value})
	}
	_, _, err := r.token()
	return err
}

func (r *jsonReader) array(n *value, depth int) error {
	n.kind = listKind
	for r.decoder.More() {
		item, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		n.items = append(n.items, item)
	}
	_, _, err := r.token()
	return err
}
