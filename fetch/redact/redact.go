// Package redact removes secrets from addresses before they are printed or logged: user,
// password, query and fragment.
package redact

import (
	"cmp"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"unicode"
)

// URL returns the scheme, host and path of an address, or "the address" for what is not a
// URL, because the position of a secret in it is unknown.
func URL(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the address"
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return cmp.Or(shown.String(), "the address")
}

var urlPattern = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s"'<>\\]+`)

var stringLiteral = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// JSON redacts the addresses in the strings of encoded JSON. A string without spaces is one
// address, whatever characters are in it; the addresses in others are found as in Text.
func JSON(encoded []byte) []byte {
	return stringLiteral.ReplaceAllFunc(encoded, func(literal []byte) []byte {
		var s string
		if json.Unmarshal(literal, &s) != nil || !strings.Contains(s, "://") {
			return literal
		}
		if strings.ContainsFunc(s, unicode.IsSpace) {
			s = Text(s)
		} else {
			s = cutSecrets(s)
		}
		b, err := json.Marshal(s)
		if err != nil {
			panic("redact: encode a string: " + err.Error())
		}
		return b
	})
}

// Text redacts everything in a text that looks like a URL.
func Text(text string) string { return urlPattern.ReplaceAllStringFunc(text, cutSecrets) }

// cutSecrets works on the text of an address. It must not parse it: a parser rejects some
// malformed addresses that contain a secret.
func cutSecrets(address string) string {
	scheme, rest, _ := strings.Cut(address, "://")
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		rest = rest[:i]
	}
	host, path := rest, ""
	if i := strings.Index(rest, "/"); i >= 0 {
		host, path = rest[:i], rest[i:]
	}
	return scheme + "://" + host[strings.LastIndex(host, "@")+1:] + path
}
