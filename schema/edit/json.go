package edit

import (
	"bytes"
	"encoding/json"
)

func locateJSON(_ string, data []byte) func(Change) (span, error) {
	t := newText(data, newline)
	return func(c Change) (span, error) {
		start, err := t.offset(c.Position, false)
		if err != nil || data[start] != '"' {
			return span{}, errNotHere
		}
		n, ok := quoted(data[start:])
		var old string
		if !ok || json.Unmarshal(data[start:start+n], &old) != nil || old != c.Old {
			return span{}, errNotHere
		}
		return span{start, start + n, jsonString(c.New)}, nil
	}
}

// jsonString encodes a string without the escapes that are for HTML.
func jsonString(s string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic("edit: " + err.Error()) // a string can be encoded
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}
