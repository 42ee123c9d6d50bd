package edit

import (
	"bytes"
	"errors"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlBreak returns the length of what the YAML parser counts as a line break, at the beginning of b.
func yamlBreak(b []byte) int {
	switch {
	case b[0] == '\n':
		return 1
	case b[0] == '\r':
		return 1 + len(b[1:]) - len(bytes.TrimPrefix(b[1:], []byte("\n")))
	case b[0] < 0x80:
		return 0
	case bytes.HasPrefix(b, []byte("\u0085")):
		return len("\u0085")
	case bytes.HasPrefix(b, []byte("\u2028")) || bytes.HasPrefix(b, []byte("\u2029")):
		return len("\u2028")
	}
	return 0
}

func locateYAML(_ string, data []byte) func(Change) (span, error) {
	t := newText(data, yamlBreak)
	return func(c Change) (span, error) {
		start, err := t.offset(c.Position, true)
		if err != nil {
			return span{}, err
		}
		return scalarYAML(data, start, c)
	}
}

// scalarYAML locates the scalar at an offset.
func scalarYAML(data []byte, start int, c Change) (span, error) {
	for data[start] == '&' || data[start] == '!' { // an anchor or a tag before the value
		n := bytes.IndexAny(data[start:], " \t\r\n")
		if n < 0 {
			return span{}, errNotHere
		}
		for start += n; start < len(data) && (data[start] == ' ' || data[start] == '\t'); {
			start++
		}
		if start == len(data) {
			return span{}, errNotHere
		}
	}
	switch data[start] {
	case '*':
		return span{}, errors.New("it comes from an anchor")
	case '"', '\'':
		return quotedYAML(data, start, c)
	case '|', '>':
		return blockYAML(data, start, c)
	}
	if !bytes.HasPrefix(data[start:], []byte(c.Old)) || !endsPlain(data[start+len(c.Old):]) {
		return span{}, errNotHere
	}
	return span{start, start + len(c.Old), c.New}, nil
}

// endsPlain reports whether a plain scalar ends before b.
func endsPlain(b []byte) bool {
	rest := bytes.TrimLeft(b, " \t")
	return len(rest) == 0 || yamlBreak(rest) > 0 || strings.ContainsRune(",]}", rune(rest[0])) || rest[0] == '#' && len(rest) < len(b)
}

// quotedYAML locates a string in single or double quotes.
func quotedYAML(data []byte, start int, c Change) (span, error) {
	n, ok := quoted(data[start:])
	text := jsonString(c.New)
	if data[start] == '\'' {
		n, ok = singleQuoted(data[start:])
		text = "'" + strings.ReplaceAll(c.New, "'", "''") + "'"
	}
	var old string
	if !ok || yaml.Unmarshal(data[start:start+n], &old) != nil || old != c.Old {
		return span{}, errNotHere
	}
	return span{start, start + n, text}, nil
}

// singleQuoted returns the length of a string in single quotes at the beginning of b.
func singleQuoted(b []byte) (int, bool) {
	for i := 1; i < len(b); i++ {
		if b[i] != '\'' {
			continue
		}
		if i+1 < len(b) && b[i+1] == '\'' {
			i++
			continue
		}
		return i + 1, true
	}
	return 0, false
}

// blockYAML locates the only line of a block.
func blockYAML(data []byte, start int, c Change) (span, error) {
	for first := true; start < len(data); first = false {
		end := start
		for end < len(data) && yamlBreak(data[end:]) == 0 {
			end++
		}
		line := data[start:end]
		if text := bytes.TrimSpace(line); !first && len(text) > 0 {
			if string(text) != strings.TrimSpace(c.Old) {
				return span{}, errNotHere
			}
			start += bytes.Index(line, text)
			return span{start, start + len(text), c.New}, nil
		}
		if end == len(data) {
			break
		}
		start = end + yamlBreak(data[end:])
	}
	return span{}, errNotHere
}
