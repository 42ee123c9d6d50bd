package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// Format is an output format.
type Format string

// The formats of plans. Other documents have some of these formats.
const (
	Text     Format = "text"
	Table    Format = "table" // of status documents, lists and backups
	JSON     Format = "json"
	YAML     Format = "yaml"
	Markdown Format = "markdown"
)

// maxText is the greatest length of a message in a table, in characters. It has room for two digests
// and some words.
const maxText = 400

// clip shortens a message for a table.
func clip(s string) string {
	letters := []rune(text.Line(s))
	if len(letters) <= maxText {
		return string(letters)
	}
	return string(letters[:maxText]) + "…"
}

// Size formats a number of bytes. A negative number is unknown and becomes a question mark.
func Size(bytes int64) string {
	if bytes < 0 {
		return "?"
	}
	return humanize.IBytes(uint64(bytes))
}

// Count formats a number of things, such as "1 image" or "2 images".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		noun = stem + "ie"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// maxNames is the greatest number of names in a line of text.
const maxNames = 3

func joinNames[T any](names []T) string { return plan.JoinMax(names, ", ", maxNames) }

// Align pads the cells of rows to columns, and returns the lines. Rows may have different
// lengths. The last cell of a row is not padded. The lines are printable, whatever the cells contain.
func Align(rows [][]string) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(text.Line(cell)))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		for j, cell := range row {
			if cell = text.Line(cell); j < len(row)-1 {
				cell += strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+2)
			}
			lines[i] += cell
		}
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// lines builds text for a terminal. Names and messages in it come from files and from other
// machines. Each of its methods writes printable lines only, and no argument can add a line.
type lines struct{ b strings.Builder }

// linef adds one line.
func (l *lines) linef(format string, args ...any) {
	l.b.WriteString(text.Line(fmt.Sprintf(format, args...)) + "\n")
}

// coloured adds one line that begins with word in a colour.
func (l *lines) coloured(c colour, indent, word, rest string) {
	l.b.WriteString(indent + string(c) + text.Line(word) + string(noColour) + text.Line(rest) + "\n")
}

// empty adds an empty line.
func (l *lines) empty() { l.b.WriteByte('\n') }

// rows adds the lines of a table after an empty line.
func (l *lines) rows(rows [][]string) {
	l.empty()
	for _, line := range Align(rows) {
		l.linef("%s", line)
	}
}

// writeTo writes the text.
func (l *lines) writeTo(w io.Writer) error {
	_, err := io.WriteString(w, l.b.String())
	return err
}

// WriteLine writes one formatted line. It is printable, whatever the arguments contain.
func WriteLine(w io.Writer, format string, args ...any) error {
	var l lines
	l.linef(format, args...)
	return l.writeTo(w)
}

// table adds a table with a title, unless it has no rows.
func (l *lines) table(title string, header []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	l.linef("%s", title)
	upper := make([]string, len(header))
	for i, word := range header {
		upper[i] = strings.ToUpper(word)
	}
	for _, line := range Align(append([][]string{upper}, rows...)) {
		l.linef("  %s", line)
	}
	l.empty()
}

// write writes a document in a format: as data, as Markdown, or as text.
func write(w io.Writer, f Format, v any, text func() *lines, markdown func() *comment) error {
	switch f {
	case JSON:
		return WriteJSON(w, v)
	case YAML:
		return WriteYAML(w, v)
	case Markdown:
		return markdown().writeTo(w)
	}
	return text().writeTo(w)
}

// Print writes v as JSON or YAML, or these lines as text. It does not support Markdown.
func Print(w io.Writer, f Format, v any, text ...string) error {
	return write(w, f, v, func() *lines {
		b := &lines{}
		for _, line := range text {
			b.linef("%s", line)
		}
		return b
	}, nil)
}

// WriteJSON writes v as indented JSON, in which characters that are not printable are escaped.
func WriteJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// WriteJSONLine writes v as JSON in one line.
func WriteJSONLine(w io.Writer, v any) error { return writeJSON(w, v, "") }

func writeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", indent)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(text.PrintableJSON(b.Bytes()))
	return err
}

// WriteYAML writes v as YAML. It replaces unprintable characters: the encoder rejects some of them,
// and does not escape all others.
func WriteYAML(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err == nil {
		b, err = yaml.JSONToYAML([]byte(text.Lines(string(b))))
	}
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = io.WriteString(w, text.Lines(string(b)))
	return err
}

// WriteProblems writes one line for each error and warning of a configuration, with its
// position in a file below dir.
func WriteProblems(w io.Writer, dir string, r load.Result) {
	var l lines
	l.problems(dir, r)
	_ = l.writeTo(w) // w is stderr, or the caller sees the error at its next write
}

func (l *lines) problems(dir string, r load.Result) {
	for _, p := range r.Errors {
		l.linef("%s", ProblemLine(dir, p, ""))
	}
	for _, p := range r.Warnings {
		l.linef("%s", ProblemLine(dir, p, "warning: "))
	}
}

// ProblemLine formats a problem like a compiler does, with the position first, so that
// editors can jump to it. The argument mark precedes the message.
func ProblemLine(dir string, p document.Problem, mark string) string {
	p = below(dir, p)
	position := p.Position
	p.Position = document.Position{}
	return text.Line(fmt.Sprintf("%s: %s%s", position, mark, p))
}

// below returns a problem with dir before the paths of its files.
func below(dir string, p document.Problem) document.Problem {
	p.File = filepath.Join(dir, p.File)
	if p.Also != (document.Position{}) {
		p.Also.File = filepath.Join(dir, p.Also.File)
	}
	return p
}
