package schema

import (
	"fmt"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// walker turns a value of CUE into one of ours.
type walker struct {
	unit  *unit
	found []mistake
}

// value turns v, which is at a path, into a value of ours, around which is the place
// of what holds it: what CUE's own packages brought in has no place of its own.
func (w *walker) value(v cue.Value, at []string, around document.Position) *wireValue {
	v, _ = v.Default()
	n := &wireValue{Position: w.place(position(v.Pos()), around)}
	switch k := v.IncompleteKind(); {
	case k == cue.StructKind || k == cue.BottomKind:
		return w.mapping(v, n, at)
	case k == cue.ListKind:
		return w.list(v, n, at)
	case !v.IsConcrete():
		w.miss(n, at, "has no definite value", "give it one")
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
		n.Kind, n.Text = document.Number, string(text)
	default:
		w.miss(n, at, "has to be a text, not bytes", "")
		return nil
	}
	return n
}

func (w *walker) miss(n *wireValue, at []string, msg, hint string) {
	if len(w.found) < maxMistakes {
		w.found = append(w.found, mistake{Path: at, Position: n.Position, Message: msg, Hint: hint})
	}
}

func (w *walker) mapping(v cue.Value, n *wireValue, at []string) *wireValue {
	n.Kind = document.Map
	fields, err := v.Fields()
	if err != nil {
		return nil // Validate has told what is wrong with it
	}
	any := false
	for fields.Next() {
		any = true
		name := fields.Selector().Unquoted()
		named := w.place(nameOf(fields.Value()), n.Position)
		below := w.value(fields.Value(), append(at[:len(at):len(at)], name), named)
		if below != nil {
			n.Fields = append(n.Fields, wireField{Name: name, Position: named, Value: *below})
		}
	}
	if !any && v.IncompleteKind() == cue.BottomKind {
		return nil
	}
	return n
}

func (w *walker) list(v cue.Value, n *wireValue, at []string) *wireValue {
	n.Kind = document.List
	items, err := v.List()
	if err != nil {
		return nil // as above
	}
	for i := 0; items.Next(); i++ {
		if below := w.value(items.Value(), append(at[:len(at):len(at)], fmt.Sprintf("[%d]", i)), n.Position); below != nil {
			n.Items = append(n.Items, *below)
		}
	}
	return n
}

// place is at, if that is in a file of the user, or else around.
func (w *walker) place(at, around document.Position) document.Position {
	if w.unit.owns(at.File) {
		return at
	}
	return around
}

func position(p interface {
	Filename() string
	Line() int
	Column() int
}) document.Position {
	return document.Position{File: strings.TrimPrefix(p.Filename(), "/"), Line: p.Line(), Column: p.Column()}
}

// nameOf is where the field of v is named, or at least its value.
func nameOf(v cue.Value) document.Position {
	if f, ok := v.Source().(*ast.Field); ok {
		return position(f.Pos())
	}
	return position(v.Pos())
}
