package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"sigs.k8s.io/yaml"
)

// OneLine is for messages that were joined of several. None steers a terminal: a part of it
// may be the name of a folder, or what a server or a saved status says.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ReplaceAll(strings.TrimSpace(s), "\n", "; "))
}

// Align pads all cells but the last of a row, so that columns stand below each
// other.
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

// clip shortens a text to what a line of a table may have.
func clip(text string) string {
	letters := []rune(OneLine(text))
	if len(letters) <= mostText {
		return string(letters)
	}
	return string(letters[:mostText]) + "…"
}

// Size writes bytes for people; unknown ones are a question mark.
func Size(bytes int64) string {
	if bytes < 0 {
		return "?"
	}
	return humanize.IBytes(uint64(bytes))
}

func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func countCopies(n int) string {
	if n == 1 {
		return "1 copy"
	}
	return fmt.Sprintf("%d copies", n)
}

// JoinMax joins names with commas. Of many names it lists the first ones, and counts the
// others: "a, b, c and 7 more". It never counts a single name.
func JoinMax(names []string, most int) string {
	if more := len(names) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// writeTable writes rows below a title; nothing where there are none.
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

// fieldDifference is one value that is declared otherwise, as a text; "" where there is
// none.
type fieldDifference struct {
	Field string `json:"field"` // images.parrot.minNumberOfCopies
	Old   string `json:"old"`
	New   string `json:"new"`
}

func NewDifference(old, now schema.Config) Difference {
	d := Difference{Difference: forecast.Compare(old, now), Fields: []fieldDifference{}}
	changed := map[string]bool{}
	for _, one := range d.Images {
		changed["images."+one.Image+"."] = one.Change == forecast.Changed
	}
	for _, one := range d.Nodes {
		changed["nodes."+one.Node+"."] = one.Change == forecast.Changed
	}
	before, after := fieldsOf(old, changed), fieldsOf(now, changed)
	fields := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(fields)
	for _, field := range slices.Compact(fields) {
		if before[field] != after[field] {
			d.Fields = append(d.Fields, fieldDifference{field, before[field], after[field]})
		}
	}
	return d
}

// fieldsOf has the values of settings, and of those images and nodes that changed, by
// the path of the field, as validate -o json shows them.
func fieldsOf(c schema.Config, changed map[string]bool) map[string]string {
	fields := map[string]string{}
	add := func(path string, view any) {
		b, err := json.Marshal(view)
		var tree any
		if err == nil {
			err = json.Unmarshal(b, &tree)
		}
		if err != nil {
			panic("show a configuration: " + err.Error()) // it was made of text
		}
		flatten(fields, path, tree)
	}
	add("settings", viewSettings(c.Settings))
	for name, one := range c.Images {
		if changed["images."+name+"."] {
			add("images."+name, viewImage(one))
		}
	}
	for name, one := range c.Nodes {
		if changed["nodes."+name+"."] {
			add("nodes."+name, viewNode(one))
		}
	}
	return fields
}

func flatten(fields map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, one := range v {
			flatten(fields, path+"."+name, one)
		}
		if len(v) == 0 {
			fields[path] = "{}"
		}
	case []any:
		words := make([]string, len(v))
		for i, one := range v {
			words[i] = fmt.Sprint(one)
		}
		fields[path] = strings.Join(words, ", ")
	case float64:
		fields[path] = fmt.Sprintf("%.0f", v) // there are only whole ones
	default:
		fields[path] = fmt.Sprint(v)
	}
}

func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

func writeYAML(w io.Writer, v any) error {
	b, err := yaml.Marshal(v)
	if err == nil {
		_, err = w.Write(b)
	}
	if err != nil {
		return fmt.Errorf("write plan: %w", err)
	}
	return nil
}

// WriteProblems writes one line for each mistake and each doubt, with its place
// in a file below dir.
func WriteProblems(w io.Writer, dir string, r schema.Result) {
	for _, p := range r.Errors {
		fmt.Fprintln(w, ProblemLine(dir, p, ""))
	}
	for _, p := range r.Warnings {
		fmt.Fprintln(w, ProblemLine(dir, p, "warning: "))
	}
}

// ProblemLine is a problem as editors and compilers write it: the place first,
// so that it can be clicked.
func ProblemLine(dir string, p document.Problem, mark string) string {
	place := p.Position
	place.File = filepath.Join(dir, place.File)
	p.Position = document.Position{}
	if p.Also != (document.Position{}) {
		p.Also.File = filepath.Join(dir, p.Also.File)
	}
	return fmt.Sprintf("%s: %s%s", place, mark, p)
}
