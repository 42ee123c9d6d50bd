package report

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"sigs.k8s.io/yaml"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Format is an output format.
type Format string

// The formats of plans. Other documents have some of them.
const (
	Text     Format = "text"
	Table    Format = "table" // of status documents, lists and backups
	JSON     Format = "json"
	YAML     Format = "yaml"
	Markdown Format = "markdown"
)

// OneLine joins the lines of a message with semicolons, and replaces control characters. A
// message may contain the name of a folder, or the text of a server or a saved status, which
// must not control a terminal.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// maxText is the length of a message in a table, in characters. It has room for two digests
// and some words.
const maxText = 400

// clip shortens a message for a table.
func clip(text string) string {
	letters := []rune(OneLine(text))
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
	return fmt.Sprintf("%d %ss", n, noun)
}

func countCopies(n int) string {
	if n == 1 {
		return "1 copy"
	}
	return fmt.Sprintf("%d copies", n)
}

// maxNames is the number of names in a line of text.
const maxNames = 3

func joinNames(names []string) string { return plan.JoinMax(names, ", ", maxNames) }

// Align pads the cells of rows to columns, and returns the lines. Rows may have different
// lengths. The last cell of a row is not padded.
func Align(rows [][]string) []string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		for j, cell := range row {
			if j < len(row)-1 {
				cell += strings.Repeat(" ", widths[j]-utf8.RuneCountInString(cell)+2)
			}
			lines[i] += cell
		}
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// writeTable writes a table with a title, unless it has no rows.
func writeTable(b *strings.Builder, title string, header []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(b, title)
	upper := make([]string, len(header))
	for i, word := range header {
		upper[i] = strings.ToUpper(word)
	}
	for _, line := range Align(append([][]string{upper}, rows...)) {
		fmt.Fprintf(b, "  %s\n", line)
	}
	fmt.Fprintln(b)
}

// WriteJSON writes v as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func writeYAML(w io.Writer, v any) error {
	b, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("write YAML: %w", err)
	}
	_, err = w.Write(b)
	return err
}

// WriteProblems writes one line for each error and warning of a configuration, with its
// position in a file below dir.
func WriteProblems(w io.Writer, dir string, r schema.Result) {
	for _, p := range r.Errors {
		fmt.Fprintln(w, ProblemLine(dir, p, ""))
	}
	for _, p := range r.Warnings {
		fmt.Fprintln(w, ProblemLine(dir, p, "warning: "))
	}
}

// ProblemLine formats a problem like a compiler does, with the position first, so that
// editors can jump to it. mark precedes the message.
func ProblemLine(dir string, p document.Problem, mark string) string {
	position := p.Position
	position.File = filepath.Join(dir, position.File)
	p.Position = document.Position{}
	if p.Also != (document.Position{}) {
		p.Also.File = filepath.Join(dir, p.Also.File)
	}
	return fmt.Sprintf("%s: %s%s", position, mark, p)
}
