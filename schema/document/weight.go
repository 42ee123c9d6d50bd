package document

import "bytes"

// Weight returns about how many values YAML or JSON text has, before it is parsed: a parser needs memory for
// each. The name of a field is a value, too. A text has at most twice as many values as its weight, without
// what aliases repeat. It counts the characters that begin values, wherever they are: quotes and comments
// hide none.
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

// endsWord reports whether a word of YAML may end at the byte at i: at a blank, an indicator or
// the end of the text, and at a character that is not ASCII, because a few of those break lines.
func endsWord(data []byte, i int) bool {
	return i < 0 || i >= len(data) || data[i] >= 0x80 || bytes.IndexByte([]byte(" \t\r\n,[]{}\"'\\"), data[i]) >= 0
}
