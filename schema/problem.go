package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Position is a place in a file of the config directory. Lines and columns
// count from 1; 0 is a place that is not known.
type Position struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// String returns "file:line:column", without what is not known.
func (p Position) String() string {
	file := printable(p.File)
	switch {
	case p.Line == 0:
		return file
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", file, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", file, p.Line, p.Column)
}

func (p Position) compare(q Position) int {
	return cmp.Or(strings.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// Problem is one mistake, or one doubt, in the words of the user's file. It
// never holds the user info or the query of an address.
type Problem struct {
	Position
	// Path is the field, such as "images.parrot.source.download.url"; "" when
	// the problem is of a whole file or of the whole directory.
	Path    string `json:"path,omitempty"`
	Message string `json:"message"`
	// Also is a second place that the mistake is made of, such as the other of two
	// definitions. It is not known where there is none.
	Also Position `json:"also,omitzero"`
	// Hint says what to do, or is "".
	Hint string `json:"hint,omitempty"`
}

// String returns "file:line:column: path: message, see also file:line:column (hint)",
// without what the problem does not have.
func (p Problem) String() string {
	var b strings.Builder
	for _, s := range []string{p.Position.String(), p.Path} {
		if s != "" {
			b.WriteString(s)
			b.WriteString(": ")
		}
	}
	b.WriteString(p.Message)
	if p.Also != (Position{}) {
		fmt.Fprintf(&b, ", see also %s", p.Also)
	}
	if p.Hint != "" {
		fmt.Fprintf(&b, " (%s)", p.Hint)
	}
	return b.String()
}

func (p Problem) compare(q Problem) int {
	return cmp.Or(p.Position.compare(q.Position), strings.Compare(p.Path, q.Path), strings.Compare(p.Message, q.Message))
}

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
