package document

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Position is a position in a file. Line and Column count from 1, in bytes; 0 is unknown.
type Position struct {
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// PositionOf returns the position of the byte at an offset in data.
func PositionOf(file string, data []byte, offset int) Position {
	before := data[:offset]
	return Position{File: file, Line: 1 + bytes.Count(before, []byte("\n")), Column: offset - bytes.LastIndexByte(before, '\n')}
}

// String returns "file:line:column", without the parts that are unknown.
func (p Position) String() string {
	file := Printable(p.File)
	switch {
	case p.Line == 0:
		return file
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", file, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", file, p.Line, p.Column)
}

// Compare orders positions by file, line and column.
func (p Position) Compare(q Position) int {
	return cmp.Or(strings.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// Problem is an error or a warning about a value. Package load returns problems with the position
// in the user's file and the path from the root of the document. While one definition is checked,
// its problems have a path relative to the definition, and no position. So they stay valid when
// lines above the definition change. Placed adds the position.
//
// A problem never contains the user info or the query of an address.
type Problem struct {
	Position
	// Path is the field, such as "images.parrot.source.download.url". It is empty when
	// the problem is about a whole file or the whole directory.
	Path    Path   `json:"path,omitempty"`
	Message string `json:"message"`
	// Also is a second position that the problem is about, such as an earlier
	// definition. The zero Position means none.
	Also Position `json:"also,omitzero"`
	// Hint is what to do. It may be "".
	Hint string `json:"hint,omitempty"`
	// AtName is true when the position is that of the field's name and not of its value.
	AtName bool `json:"-"`
}

// String returns "file:line:column: path: message, see also file:line:column (hint)",
// without the parts that the problem does not have.
func (p Problem) String() string {
	var b strings.Builder
	for _, s := range []string{p.Position.String(), p.Path.String()} {
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

// Compare orders problems by position, path and message.
func (p Problem) Compare(q Problem) int {
	return cmp.Or(p.Position.Compare(q.Position), slices.Compare(p.Path, q.Path), strings.Compare(p.Message, q.Message))
}

// Equal reports whether p and q are the same problem at the same position.
func (p Problem) Equal(q Problem) bool {
	return p.Compare(q) == 0 && p.Also == q.Also && p.Hint == q.Hint
}

// Placed returns the problem with its position in the file. The problem is about value v or
// a value below v. The argument name is the position of the name under which v is defined,
// and prefix is the path of v.
func (p Problem) Placed(prefix Path, v *Value, name Position) Problem {
	found, pos := v.Find(p.Path, name)
	if found != nil && !p.AtName {
		pos = found.Pos
	}
	p.Position, p.Path, p.AtName = pos, append(slices.Clip(prefix), p.Path...), false
	return p
}

// Printable returns s on one line, without control characters for a terminal, and
// shortened to 200 bytes.
func Printable(s string) string {
	if len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
