package document

import "bytes"

// Weight returns about how many values YAML or JSON text has, before it is parsed: the memory of
// a parser and of its result is proportional to it. The name of a field is a value, too. A text
// has at most twice as many values as its weight, without what aliases repeat, and usually fewer
// than its weight.
//
// It counts the characters that begin values, wherever they are, so that no confusion about
// quotes, comments and indentation hides values. So text within strings counts, too, such as that
// of a file within a ConfigMap.
func Weight(json bool, data []byte) int {
	n := 1
	for i, c := range data {
		switch c {
		case '{', '[', ',':
			n++ // the first item or field, or the next one
		case ':':
			n++
			// In JSON, a comma or a brace has counted for the field.
			if !json && (endsWord(data, i+1) || endsWord(data, i-1)) {
				n++
			}
		case '-':
			if !json && endsWord(data, i+1) {
				n++ // an item, or a document
			}
		case '?':
			if !json && endsWord(data, i+1) {
				n += 2 // a name that is no word, and its value
			}
		case '.':
			if !json && bytes.HasPrefix(data[i:], []byte("...")) && endsWord(data, i-1) {
				n++ // a document may follow
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
