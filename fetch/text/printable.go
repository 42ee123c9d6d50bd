// Package text makes text harmless before it is printed or logged: for terminals and documents (Line, Lines, PrintableJSON),
// and without the secrets in addresses (Redact, RedactURL, RedactJSON).
//
// Names and messages come from files, peers, servers and images. A control character in them could move a cursor, set the
// title of a terminal, reverse the order of letters, or begin a line that looks like one of this program.
package text

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line returns text as one line of printable characters. It joins lines with semicolons, and replaces
// all other characters that are not printable, and bytes that are not UTF-8, with U+FFFD.
func Line(text string) string {
	text = strings.ReplaceAll(strings.TrimRight(text, "\r\n"), "\r\n", "\n")
	return strings.Map(replace, strings.ReplaceAll(text, "\n", "; "))
}

// Lines is Line for text that may have several lines and tabs, which it keeps.
func Lines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return replace(r)
	}, text)
}

func replace(r rune) rune {
	if !unicode.IsPrint(r) {
		return unicode.ReplacementChar
	}
	return r
}

// PrintableJSON returns encoded JSON with the same meaning, in which characters that are not printable are
// escaped. An encoder escapes only some of them.
func PrintableJSON(encoded []byte) []byte {
	clean := func(r rune) bool { return unicode.IsPrint(r) || r == '\n' || r == '\t' || r == '\r' } // outside of strings
	if utf8.Valid(encoded) && bytes.IndexFunc(encoded, func(r rune) bool { return !clean(r) }) < 0 {
		return encoded
	}
	var out bytes.Buffer
	for rest := encoded; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		switch {
		case clean(r) && (r != utf8.RuneError || n > 1):
			out.Write(rest[:n])
		case r > 0xffff:
			high, low := (r-0x10000)>>10+0xd800, (r-0x10000)&0x3ff+0xdc00
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		rest = rest[n:]
	}
	return out.Bytes()
}
