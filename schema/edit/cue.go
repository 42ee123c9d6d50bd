package edit

import (
	"bytes"
	"errors"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// locateCUE finds string literals. Anything else at a position is an expression.
func locateCUE(file string, data []byte) func(Change) (span, error) {
	parsed, err := parser.ParseFile(file, data)
	if err != nil {
		return func(Change) (span, error) { return span{}, errNotHere }
	}
	type place struct{ line, column int }
	found := map[place]*ast.BasicLit{} // nil: something else begins there
	ast.Walk(parsed, func(n ast.Node) bool {
		switch n.(type) {
		case *ast.File, *ast.StructLit: // it begins where its first field does
			return true
		}
		at := place{n.Pos().Line(), n.Pos().Column()}
		if _, known := found[at]; known { // it is a part of what begins there, such as the name of a field
			return true
		}
		// CUE reports the position of the field, or that of the value.
		if field, ok := n.(*ast.Field); ok {
			n = field.Value
		}
		found[at] = nil
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			found[at] = l
		}
		return true
	}, nil)
	return func(c Change) (span, error) {
		l := found[place{c.Line, c.Column}]
		if l == nil {
			return span{}, errors.New("it is not written as a string, but computed")
		}
		return literalCUE(data, l, c)
	}
}

// literalCUE locates the text within the quotes of a literal.
func literalCUE(data []byte, found *ast.BasicLit, c Change) (span, error) {
	old, err := literal.Unquote(found.Value)
	start := found.Pos().Offset()
	info, open, _, err2 := literal.ParseQuotes(found.Value, found.Value)
	if errors.Join(err, err2) != nil || old != c.Old || !info.IsDouble() || strings.ContainsAny(c.New, `"\`) {
		return span{}, errNotHere
	}
	if info.IsMulti() {
		return multilineCUE(data, start, c)
	}
	if !bytes.HasPrefix(data[start:], []byte(found.Value)) {
		return span{}, errNotHere
	}
	n := strings.Count(found.Value[:open], "#") + 1 // the closing quote is followed by as many as there are before the opening one
	return span{start + open, start + len(found.Value) - n, c.New}, nil
}

// multilineCUE locates the only line of a literal on several lines. The parser drops carriage returns from such a literal.
func multilineCUE(data []byte, start int, c Change) (span, error) {
	text := strings.TrimSpace(c.Old)
	n := bytes.Index(data[start:], []byte(text))
	if n < 0 || bytes.Trim(data[start:start+n], "#\" \t\r\n") != nil {
		return span{}, errNotHere
	}
	return span{start + n, start + n + len(text), c.New}, nil
}
