package sandbox

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing/fstest"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// walker converts a value of CUE to a document.Value.
type walker struct {
	files    fstest.MapFS // of the user
	problems []document.Problem
	left     int // how many values and names the document may still have; below 0: it has too many
}

// value converts value v at a path. The argument parent is the position of the value around v. A value from one of CUE's own
// packages gets that position, because it has none in the user's files.
func (w *walker) value(v cue.Value, at document.Path, parent document.Position) *document.Value {
	if w.left--; w.left < 0 {
		return nil
	}
	v, _ = v.Default()
	n := &document.Value{Pos: w.ownPosition(position(v.Pos()), parent)}
	switch k := v.IncompleteKind(); {
	case k == cue.StructKind || k == cue.BottomKind:
		return w.mapping(v, n, at)
	case k == cue.ListKind:
		return w.list(v, n, at)
	case !v.IsConcrete():
		w.problem(n, at, "has no definite value", "give it a definite value")
		return nil
	case k == cue.StringKind:
		n.Kind = document.Text
		n.Text, _ = v.String()
	case k == cue.BoolKind:
		n.Kind = document.Bool
		b, _ := v.Bool()
		n.Text = fmt.Sprint(b)
	case k == cue.NullKind:
		n.Kind = document.Null
	case k == cue.IntKind || k == cue.FloatKind || k == cue.NumberKind:
		text, _ := v.MarshalJSON()
		n.Kind, n.Text, n.Number = document.Number, string(text), document.ParseNumber(json.Number(text))
	default:
		w.problem(n, at, "must be a string, not bytes", "")
		return nil
	}
	return n
}

func (w *walker) problem(n *document.Value, at document.Path, msg, hint string) {
	if len(w.problems) < maxProblems {
		w.problems = append(w.problems, document.Problem{Path: at, Position: n.Pos, Message: msg, Hint: hint})
	}
}

// addIncomplete adds the problems that neither the validation nor the walk has found: the condition of an "if" or the name
// of a field has no definite value. CUE leaves out what depends on it, which would look like a removal.
func (w *walker) addIncomplete(problems []document.Problem) {
	for _, p := range problems {
		known := slices.ContainsFunc(w.problems, func(q document.Problem) bool { return p.Path.Within(q.Path) })
		if !known && len(w.problems) < maxProblems {
			p.Hint = cmp.Or(p.Hint, "give it a definite value")
			w.problems = append(w.problems, p)
		}
	}
}

func (w *walker) mapping(v cue.Value, n *document.Value, at document.Path) *document.Value {
	n.Kind = document.Map
	fields, err := v.Fields()
	if err != nil {
		return nil // Validate has reported the reason
	}
	empty := true
	for fields.Next() && w.left >= 0 {
		empty = false
		w.left--
		name := fields.Selector().Unquoted()
		pos := w.ownPosition(fieldPosition(fields.Value()), n.Pos)
		if below := w.value(fields.Value(), at.With(name), pos); below != nil {
			n.Fields = append(n.Fields, document.Field{Name: name, Pos: pos, Value: below})
		}
	}
	if empty && v.IncompleteKind() == cue.BottomKind {
		return nil
	}
	return n
}

func (w *walker) list(v cue.Value, n *document.Value, at document.Path) *document.Value {
	n.Kind = document.List
	items, err := v.List()
	if err != nil {
		return nil // Validate has reported the reason
	}
	for i := 0; items.Next() && w.left >= 0; i++ {
		if below := w.value(items.Value(), at.WithIndex(i), n.Pos); below != nil {
			n.Items = append(n.Items, below)
		}
	}
	return n
}

// ownPosition returns the position pos if it is in a file of the user, and otherwise parent.
func (w *walker) ownPosition(pos, parent document.Position) document.Position {
	if w.files[pos.File] != nil {
		return pos
	}
	return parent
}

func position(p interface {
	Filename() string
	Line() int
	Column() int
}) document.Position {
	return document.Position{File: strings.TrimPrefix(p.Filename(), "/"), Line: p.Line(), Column: p.Column()}
}

// fieldPosition returns the position of the name of the field with value v, or else of the value.
func fieldPosition(v cue.Value) document.Position {
	if f, ok := v.Source().(*ast.Field); ok {
		return position(f.Pos())
	}
	return position(v.Pos())
}
