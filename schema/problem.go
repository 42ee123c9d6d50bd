package schema

import (
	"cmp"
	"fmt"
	"strings"
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
