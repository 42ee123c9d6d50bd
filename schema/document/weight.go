package document

import "bytes"

// Weight estimates how many values a YAML or JSON text has, without parsing it: a parser needs memory for
// each. The name of a field is a value, too. Without aliases, a text has at most twice as many values as its
// weight. Weight counts the characters that begin values, also those in quotes and comments.
func Weight(data []byte) int {
	n := 1 + bytes.Count(data, []byte("..."))
	for i, c := range data {
		switch c {
		case '{', '[', ',':
			n++ // the first item or field, or the next one
		case ':':
			n += 2 // a name and its value
		case '-':
			if endsWord(data, i+1) {
				n++ // an item, or a document
			}
		case '?':
			if endsWord(data, i+1) {
				n += 2 // a name that is no word, and its value
			}
		}
	}
	return n
}

// endsWord reports whether a word of YAML may end at offset i: at a blank, at an indicator, at the
// end of the text, or at a character that is not ASCII, because a few such characters break lines.
func endsWord(data []byte, i int) bool {
	return i < 0 || i >= len(data) || data[i] >= 0x80 || bytes.IndexByte([]byte(" \t\r\n,[]{}\"'\\"), data[i]) >= 0
}
