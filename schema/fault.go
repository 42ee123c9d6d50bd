package schema

import (
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// fault is a mistake in one thing, such as an image, wherever the thing stands:
// an unchanged thing keeps its faults when lines are added above it.
type fault struct {
	path      fieldPath
	atName    bool // the place is the field's name, not its value
	msg, hint string
}

// fieldPath leads to a value below a thing: names of fields, and "[0]" for the
// elements of a list.
type fieldPath []string

func (p fieldPath) with(name string) fieldPath { return append(slices.Clip(p), name) }

func (p fieldPath) String() string {
	var b strings.Builder
	for _, name := range p {
		if b.Len() > 0 && !strings.HasPrefix(name, "[") {
			b.WriteByte('.')
		}
		b.WriteString(printable(name))
	}
	return b.String()
}

// printable is s on one line and without what would steer a terminal.
func printable(s string) string {
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

func (p fieldPath) within(q fieldPath) bool { return len(p) >= len(q) && slices.Equal(p[:len(q)], q) }

func (p fieldPath) parent() fieldPath { return p[:max(0, len(p)-1)] }

// find returns the value at p and the place of its name. Of what is not there,
// it returns nil and the place of the name that p leads to last.
func (v *value) find(p fieldPath, name Position) (*value, Position) {
	for _, step := range p {
		next, at := v.step(step)
		if next == nil {
			return nil, name
		}
		if at.Line > 0 {
			name = at
		}
		v = next
	}
	return v, name
}

func (v *value) step(name string) (*value, Position) {
	if v.kind == listKind {
		if i, ok := listIndex(name); ok && i < len(v.items) {
			return v.items[i], v.items[i].pos
		}
		return nil, Position{}
	}
	if f := v.child(name); f != nil {
		return f.value, f.pos
	}
	return nil, Position{}
}

// problem places f, which is of the thing that v defines under a name.
func (f fault) problem(prefix fieldPath, v *value, name Position) Problem {
	found, pos := v.find(f.path, name)
	if found != nil && !f.atName {
		pos = found.pos
	}
	return Problem{Position: pos, Path: append(slices.Clip(prefix), f.path...).String(), Message: f.msg, Hint: f.hint}
}
