package edit

import (
	"bytes"
	"encoding/json"
)

func locateJSON(data []byte, c Change) (span, error) {
	start, err := offset(data, c.Position, false, newline)
	if err != nil || data[start] != '"' {
		return span{}, errNotHere
	}
	n, ok := quoted(data[start:])
	var text string
	if !ok || json.Unmarshal(data[start:start+n], &text) != nil || text != c.Old {
		return span{}, errNotHere
	}
	return span{start, start + n, jsonString(c.New)}, nil
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
