package edit

import (
	"bytes"
	"cmp"
	"errors"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
	"github.com/seed-26586806/backing-image-manager/schema/document"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// change replaces a part of a file.
type change struct {
	document.Position // of the value
	start, end        int
	text              string
}

// beforeText matches what may be between the position of a value and its text: the name of the field in CUE, anchors and
// tags, the beginning of a block, and quotes.
var beforeText = regexp.MustCompile(`^([\w"]+:)?\s*([&!]\S*\s+)*([|>][-+\d]*[ \t]*(#.*)?\s+)?#*["']*\s*$`)

// find finds the text of a value in its file, and returns the change to another text. It does not parse the file: prove
// loads the result, and so shows that the change has exactly the wanted effect.
func (e *editor) find(v load.ValueOrigin, text string) (change, error) {
	i := slices.IndexFunc(e.snapshot.Files, func(f configdir.File) bool { return f.Path == v.File })
	if i < 0 || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == ' ' }) {
		return change{}, errNotHere
	}
	data := e.snapshot.Files[i].Data
	start := offset(data, v.Position, path.Ext(v.File))
	old := strings.TrimSpace(v.Text)
	for _, spelled := range []string{old, inSingleQuotes(old)} {
		n := bytes.Index(data[start:], []byte(spelled))
		if n < 0 || !beforeText.Match(data[start:start+n]) {
			continue
		}
		if at := start + n; at > 0 && data[at-1] == '\'' {
			text = inSingleQuotes(text)
		}
		return change{v.Position, start + n, start + n + len(spelled), text}, nil
	}
	return change{}, errNotHere
}

var errNotHere = errors.New("the value is not there as plain text: it is an anchor or an expression, or has escapes or several lines")

// inSingleQuotes returns the text of a string within the single quotes of YAML.
func inSingleQuotes(s string) string { return strings.ReplaceAll(s, "'", "''") }

// offset returns the offset of a position, or the end of the file if the position does not exist. Columns count
// characters in YAML, and bytes in JSON and CUE.
func offset(data []byte, p document.Position, ext string) int {
	at := len(data) - len(bytes.TrimPrefix(data, []byte("\ufeff")))
	for line := 1; line < p.Line; line++ {
		n := bytes.IndexByte(data[at:], '\n')
		if n < 0 {
			return len(data)
		}
		at += n + 1
	}
	for column := 1; column < p.Column && at < len(data); column++ {
		n := 1
		if ext != ".json" && ext != ".cue" {
			_, n = utf8.DecodeRune(data[at:])
		}
		at += n
	}
	return at
}

// apply returns the files that the changes of some images concern, with their new content.
func (e *editor) apply(names []string) ([]configdir.File, error) {
	byFile := map[string][]change{}
	for _, name := range names {
		for _, c := range e.changes[name] {
			byFile[c.File] = append(byFile[c.File], c)
		}
	}
	var files []configdir.File
	for _, f := range e.snapshot.Files {
		changes := byFile[f.Path]
		slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.start, b.start) })
		var edited []byte
		end := 0
		for _, c := range changes {
			if c.start < end {
				return nil, &Refusal{document.Problem{Position: c.Position, Message: "another value is at the same place"}}
			}
			edited = append(append(edited, f.Data[end:c.start]...), c.text...)
			end = c.end
		}
		if len(changes) > 0 {
			files = append(files, configdir.File{Path: f.Path, Data: append(edited, f.Data[end:]...)})
		}
	}
	return files, nil
}
