package schema

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var (
	yamlWords     = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)`)
	conflict      = regexp.MustCompile(`^(<<<<<<<|=======|>>>>>>>)`)
	unknownAnchor = regexp.MustCompile(`unknown anchor '(.*)' referenced`)
)

func yamlError(file string, data []byte, err error) error {
	e := &parseError{pos: Position{File: file}, msg: err.Error()}
	m := yamlWords.FindStringSubmatch(err.Error())
	if m == nil {
		return e
	}
	e.msg = "not valid YAML: " + printable(m[2])
	if a := unknownAnchor.FindStringSubmatch(m[2]); a != nil {
		if i := bytes.Index(data, []byte("*"+a[1])); i >= 0 {
			e.pos = lineOf(file, data, i)
		}
		return e
	}
	if len(data) > maxSearched {
		e.pos.Line, _ = strconv.Atoi(m[1]) // "" is line 0: not known
		return e
	}
	line, text := stumbles(data, err)
	e.pos.Line, e.pos.Column = line, len(text)-len(bytes.TrimLeft(text, " \t"))+1
	e.hint = yamlHint(m[2], text)
	return e
}

// maxSearched bounds the files that are read several times for the line of a mistake.
const maxSearched = 1 << 20

// stumbles returns the line that the parser cannot read, and what it says: the first one
// up to which the file fails in the same way. Where the parser itself says that it is, the
// mapping or the list around it begins, or the line above that.
func stumbles(data []byte, err error) (int, []byte) {
	lines := bytes.SplitAfter(data, []byte("\n"))
	read := 0
	ends := make([]int, len(lines))
	for i, line := range lines {
		read += len(line)
		ends[i] = read
	}
	i := sort.Search(len(lines)-1, func(i int) bool {
		e := parses(data[:ends[i]])
		return e != nil && e.Error() == err.Error()
	})
	for i > 0 && len(bytes.TrimSpace(lines[i])) == 0 {
		i-- // a file that ends too early does that where its text ends
	}
	return i + 1, bytes.TrimRight(lines[i], "\r\n")
}

func parses(data []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// yamlHint says what is most often meant by the parser's words about a line.
func yamlHint(words string, line []byte) string {
	indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
	switch {
	case conflict.Match(line):
		return "git left a conflict there: resolve it"
	case bytes.Contains(indent, []byte("\t")):
		return "indent with spaces: YAML does not allow tabs"
	case strings.Contains(words, "cannot start any token"):
		return "quote a text that begins with @, ` or %"
	case strings.Contains(words, "end of stream"):
		return "close the quotes"
	case strings.Contains(words, "expected ','"), strings.Contains(words, "node content"):
		return "close each bracket, and quote a text with one of , : ? [ ] { } in it"
	case strings.Contains(words, "expected ':'"):
		return "write \"name: value\""
	case strings.Contains(words, "expected key"), strings.Contains(words, "expected '-'"),
		strings.Contains(words, "not allowed in this context"):
		return "indent it as what stands beside it, and put a space after each colon and dash"
	}
	return ""
}
