package edit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Change replaces the text of one scalar.
type Change struct {
	document.Position        // of the scalar, as package document or CUE returns it
	Old               string // the text of the scalar
	New               string // printable, on one line
}

// span is a part of a file, and what replaces it.
type span struct {
	start, end int
	text       string
}

// Replace returns the content of a file with the changes. The name of the file decides its language. An error means that
// a value cannot be replaced such that only it changes; its text is what the user should know about the value.
func Replace(file string, data []byte, changes []Change) ([]byte, error) {
	language := map[string]func(string, []byte) func(Change) (span, error){".json": locateJSON, ".cue": locateCUE}[path.Ext(file)]
	if language == nil {
		language = locateYAML
	}
	bom := len(data) - len(bytes.TrimPrefix(data, []byte("\ufeff")))
	text := data[bom:]
	locate := language(file, text)
	var spans []span
	for _, c := range changes {
		if c.New == "" || strings.ContainsFunc(c.New, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
			return nil, errors.New("the new value is not printable")
		}
		s, err := locate(c)
		if err != nil {
			return nil, &placedError{schema.ValueOrigin{Position: c.Position}, err}
		}
		spans = append(spans, s)
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	edited := slices.Clone(data[:bom])
	end := 0
	for _, s := range spans {
		if s.start < end {
			return nil, errors.New("two values are at the same place")
		}
		edited = append(append(edited, text[end:s.start]...), s.text...)
		end = s.end
	}
	edited = append(edited, text[end:]...)
	return edited, checkDocuments(file, text, edited[bom:], changes)
}

// checkDocuments parses a YAML or JSON file before and after the changes, and returns an error unless as many values
// differ as there are changes. CUE is compared when it is evaluated.
func checkDocuments(file string, before, after []byte, changes []Change) error {
	if path.Ext(file) == ".cue" {
		return nil
	}
	a, err := parse(file, before)
	b, err2 := parse(file, after)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if len(a) != len(b) {
		return errors.New("the file would have another number of documents")
	}
	different := 0
	for i := range a {
		n, err := countDifferent(a[i], b[i])
		if err != nil {
			return err
		}
		different += n
	}
	// Several values in a text within a ConfigMap are one value of the file.
	if different == 0 || different > len(changes) {
		return fmt.Errorf("%d values would change: an anchor shares it", different)
	}
	return nil
}

func parse(file string, data []byte) ([]*document.Value, error) {
	if path.Ext(file) == ".json" {
		doc, problem := document.ParseJSON(file, data)
		if problem != nil {
			return nil, errors.New("the file would be invalid")
		}
		return []*document.Value{doc}, nil
	}
	docs, problem := document.ParseYAML(file, data, &document.Limits{Aliased: document.MaxAliased})
	if problem != nil {
		return nil, errors.New("the file would be invalid")
	}
	return docs, nil
}

// countDifferent returns how many texts differ, and an error if anything else does.
func countDifferent(a, b *document.Value) (int, error) {
	if a.Kind != b.Kind || a.Block != b.Block || len(a.Fields) != len(b.Fields) || len(a.Items) != len(b.Items) {
		return 0, errors.New("the value would get another type: quote it")
	}
	n := 0
	if a.Text != b.Text {
		n++
	}
	below := func(a, b *document.Value) error {
		more, err := countDifferent(a, b)
		n += more
		return err
	}
	for i := range a.Fields {
		if a.Fields[i].Name != b.Fields[i].Name {
			return 0, errors.New("another field would change")
		}
		if err := below(a.Fields[i].Value, b.Fields[i].Value); err != nil {
			return 0, err
		}
	}
	for i := range a.Items {
		if err := below(a.Items[i], b.Items[i]); err != nil {
			return 0, err
		}
	}
	return n, nil
}

var errNotHere = errors.New("the file does not have the value itself at this place")

// text is a file that is divided into lines.
type text struct {
	data []byte
	next func([]byte) int // returns the length of the line break at the beginning of a text, or 0
	// lines are the offsets of the lines.
	lines []int
}

func newText(data []byte, next func([]byte) int) text {
	t := text{data, next, []int{0}}
	for at := 0; at < len(data); {
		n := next(data[at:])
		if at += max(n, 1); n > 0 {
			t.lines = append(t.lines, at)
		}
	}
	return t
}

// offset returns the offset of a position. If runes is true, columns count characters, and otherwise bytes.
func (t text) offset(p document.Position, runes bool) (int, error) {
	if p.Line < 1 || p.Line > len(t.lines) || p.Column < 1 {
		return 0, errNotHere
	}
	at := t.lines[p.Line-1]
	for column := 1; column < p.Column; column++ {
		if at >= len(t.data) || t.next(t.data[at:]) > 0 {
			return 0, errNotHere
		}
		n := 1
		if runes {
			_, n = utf8.DecodeRune(t.data[at:])
		}
		at += n
	}
	if at >= len(t.data) {
		return 0, errNotHere
	}
	return at, nil
}

// newline returns the length of a line feed.
func newline(b []byte) int {
	if b[0] == '\n' {
		return 1
	}
	return 0
}

// quoted returns the length of a quoted string at the beginning of b, which ends at the first quote that is not escaped by
// a backslash.
func quoted(b []byte) (int, bool) {
	for i := 1; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1, true
		}
	}
	return 0, false
}
