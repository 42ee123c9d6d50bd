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

// locateCUE finds a string literal. Anything else at the position is an expression.
func locateCUE(data []byte, c Change) (span, error) {
	file, err := parser.ParseFile(c.File, data)
	if err != nil {
		return span{}, errNotHere
	}
	var found *ast.BasicLit
	ast.Walk(file, func(n ast.Node) bool {
		// CUE reports the position of the field, or that of the value.
		if n.Pos().Line() != c.Line || n.Pos().Column() != c.Column {
			return true
		}
		if f, ok := n.(*ast.Field); ok {
			n = f.Value
		}
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			found = l
		}
		return true
	}, nil)
	if found == nil {
		return span{}, errors.New("it is not written as a string, but computed")
	}
	old, err := literal.Unquote(found.Value)
	start := found.Pos().Offset()
	if err != nil || old != c.Old || !bytes.HasPrefix(data[start:], []byte(found.Value)) {
		return span{}, errNotHere
	}
	info, open, _, err := literal.ParseQuotes(found.Value, found.Value)
	if err != nil || !info.IsDouble() || strings.ContainsAny(c.New, `"\`) {
		return span{}, errNotHere
	}
	if info.IsMulti() {
		n := strings.Index(found.Value, strings.TrimSpace(old))
		if n < 0 {
			return span{}, errNotHere
		}
		return span{start + n, start + n + len(strings.TrimSpace(old)), c.New}, nil
	}
	n := strings.Count(found.Value[:open], "#") + 1 // the closing quote is followed by as many as there are before the opening one
	return span{start + open, start + len(found.Value) - n, c.New}, nil
}
