package peer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Limits of the JSON of a peer. They bound the memory of the reader, whatever the peer sends.
const (
	scanBuffer = 32 << 10
	// maxText is how many bytes of a string are kept, in the notation of the document. The rest is
	// dropped. The longest real text is a message, and six bytes may encode one of its bytes.
	maxText = 6*maxMessage + 64
	// maxElement is the length of an element with its texts truncated, such as a copy. A real copy has
	// a few texts and 1 KiB of other fields; newer versions may add fields.
	maxElement = 64 << 10
	maxNesting = 100 // a real document has 4 levels
)

// scanner reads a JSON document from a stream, in memory that does not depend on the document. It
// passes each element that the caller wants to know to encoding/json, and passes over all others
// without keeping them.
//
// It finds only the ends of values. A value that is passed over may be invalid in itself.
type scanner struct {
	r        io.Reader
	buf      []byte
	pos, end int // buf[pos:end] is not read yet
	err      error
	element  []byte  // the memory of value
	sequence [6]byte // the memory of escape
}

func newScanner(r io.Reader) *scanner { return &scanner{r: r, buf: make([]byte, scanBuffer)} }

// object reads an object. It calls field after each key, and field reads the value. A duplicate key is
// an error.
func (s *scanner) object(field func(key string) error) error {
	var seen []string
	return s.members('{', '}', func() error {
		key, err := s.key()
		switch {
		case err != nil:
			return err
		case slices.Contains(seen, key):
			return fmt.Errorf("duplicate field %q", shortLine(key, maxName))
		case len(seen) == maxFields:
			return fmt.Errorf("more than %d fields", maxFields)
		}
		seen = append(seen, key)
		return field(key)
	})
}

// array reads an array, and calls element to read each element. It reads null as an empty array.
func (s *scanner) array(element func() error) error {
	switch c, err := s.peek(); {
	case err != nil:
		return err
	case c == 'n':
		return s.skip()
	case c != '[':
		return fmt.Errorf("want an array, got %q", c)
	}
	return s.members('[', ']', element)
}

// members reads what is between two brackets. It calls member at the start of each member.
func (s *scanner) members(opening, closing byte, member func() error) error {
	if err := s.expect(opening); err != nil {
		return err
	}
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c == closing {
		s.pos++
		return nil
	}
	for {
		if err := member(); err != nil {
			return err
		}
		switch c, err := s.peek(); {
		case err != nil:
			return err
		case c == closing:
			s.pos++
			return nil
		case c != ',':
			return fmt.Errorf("%q or %q is missing", ',', closing)
		}
		s.pos++
	}
}

// key reads the key of a member of an object, and the colon.
func (s *scanner) key() (string, error) {
	s.element = s.element[:0]
	if c, err := s.peek(); err != nil || c != '"' {
		return "", errors.Join(err, errors.New("a key is missing"))
	}
	if err := s.text(&s.element); err != nil {
		return "", err
	}
	var key string
	if err := json.Unmarshal(s.element, &key); err != nil {
		return "", err
	}
	return key, s.expect(':')
}

// value returns the next value as JSON without white space, with texts longer than maxText truncated.
// It is valid until the next call of a method.
func (s *scanner) value() ([]byte, error) {
	s.element = s.element[:0]
	err := s.copyValue(&s.element, 0)
	return s.element, err
}

// decode reads the next value into v.
func (s *scanner) decode(v any) error {
	text, err := s.value()
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// skip passes over the next value.
func (s *scanner) skip() error { return s.copyValue(nil, 0) }

// copyValue appends the next value to out, unless that is nil.
func (s *scanner) copyValue(out *[]byte, depth int) error {
	c, err := s.peek()
	switch {
	case err != nil:
		return err
	case out != nil && len(*out) > maxElement:
		return fmt.Errorf("an element is longer than %d bytes", maxElement)
	case depth > maxNesting:
		return fmt.Errorf("the depth is more than %d", maxNesting)
	}
	switch c {
	case '"':
		return s.text(out)
	case '{', '[':
		return s.copyMembers(out, c, depth)
	}
	return s.literal(out)
}

// copyMembers is copyValue for an object or an array, which the byte opening begins.
func (s *scanner) copyMembers(out *[]byte, opening byte, depth int) error {
	add := func(c byte) {
		if out != nil {
			*out = append(*out, c)
		}
	}
	closing := opening + 2 // '{' and '}', '[' and ']'
	add(opening)
	first := true
	err := s.members(opening, closing, func() error {
		if !first {
			add(',')
		}
		first = false
		if opening == '{' {
			if c, err := s.peek(); err != nil || c != '"' {
				return errors.Join(err, errors.New("a key is missing"))
			}
			if err := s.text(out); err != nil {
				return err
			}
			if err := s.expect(':'); err != nil {
				return err
			}
			add(':')
		}
		return s.copyValue(out, depth+1)
	})
	add(closing)
	return err
}

// text copies a string. It drops what exceeds maxText.
func (s *scanner) text(out *[]byte) error {
	if err := s.expect('"'); err != nil {
		return err
	}
	kept := appender{out: out, left: maxText}
	kept.bracket('"')
	for {
		if s.pos == s.end && !s.fill() {
			return s.err
		}
		if n := plainLength(s.buf[s.pos:s.end]); n > 0 {
			kept.add(s.buf[s.pos:s.pos+n], 1)
			s.pos += n
			continue
		}
		escape, err := s.escape()
		switch {
		case err != nil:
			return err
		case len(escape) == 0:
			kept.bracket('"')
			return nil
		}
		kept.add(escape, len(escape))
	}
}

// plainLength returns the number of bytes before the first quote or backslash.
func plainLength(text []byte) int {
	for i, c := range text {
		if c == '"' || c == '\\' {
			return i
		}
	}
	return len(text)
}

// escape reads an escape sequence of a string, or the quote that ends the string: then it returns
// nothing. The result is valid until the next read.
func (s *scanner) escape() ([]byte, error) {
	sequence := s.sequence[:0]
	for length := 1; len(sequence) < length; {
		if s.pos == s.end && !s.fill() {
			return nil, s.err
		}
		c := s.buf[s.pos]
		s.pos++
		switch {
		case len(sequence) == 0 && c == '"':
			return nil, nil
		case len(sequence) == 0:
			length = 2
		case len(sequence) == 1 && c == 'u':
			length = 6
		}
		sequence = append(sequence, c)
	}
	return sequence, nil
}

// appender appends the parts of a string to out, unless that is nil, until left bytes are used up.
type appender struct {
	out  *[]byte
	left int
}

// bracket appends a quote.
func (a *appender) bracket(quote byte) {
	if a.out != nil {
		*a.out = append(*a.out, quote)
	}
}

// add appends a part that may be cut after each unit bytes. It appends nothing after a cut.
func (a *appender) add(part []byte, unit int) {
	if len(part) > a.left {
		part, a.left = part[:a.left-a.left%unit], 0
		if unit > 1 {
			return
		}
	}
	a.left = max(0, a.left-len(part))
	if a.out != nil {
		*a.out = append(*a.out, part...)
	}
}

// maxLiteral is the length of a number. A real one has at most 24 digits.
const maxLiteral = 256

// literal copies a number or a word.
func (s *scanner) literal(out *[]byte) error {
	for length := 0; ; length++ {
		if s.pos == s.end && !s.fill() {
			return s.err
		}
		c := s.buf[s.pos]
		switch c {
		case ',', ':', ']', '}', '"', '[', '{', ' ', '\t', '\r', '\n':
			if length == 0 {
				return fmt.Errorf("invalid character %q: a value is missing", c)
			}
			return nil
		}
		if length == maxLiteral {
			return fmt.Errorf("a number is longer than %d bytes", maxLiteral)
		}
		s.pos++
		if out != nil {
			*out = append(*out, c)
		}
	}
}

// expect reads one byte, which must be want, after white space.
func (s *scanner) expect(want byte) error {
	c, err := s.peek()
	if err == nil && c != want {
		err = fmt.Errorf("invalid character %q: %q is missing", c, want)
	}
	if err == nil {
		s.pos++
	}
	return err
}

// peek passes over white space and returns the next byte without reading it.
func (s *scanner) peek() (byte, error) {
	for {
		for ; s.pos < s.end; s.pos++ {
			switch c := s.buf[s.pos]; c {
			case ' ', '\t', '\r', '\n':
			default:
				return c, nil
			}
		}
		if !s.fill() {
			return 0, s.err
		}
	}
}

// finish returns an error if anything but white space follows.
func (s *scanner) finish() error {
	_, err := s.peek()
	switch {
	case err == nil:
		return errors.New("unexpected data after the document")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil
	}
	return err
}

// fill reads more bytes. Without any, it sets err, and returns false. All bytes must have been used.
func (s *scanner) fill() bool {
	s.pos, s.end = 0, 0
	for empty := 0; s.end == 0 && s.err == nil; empty++ {
		s.end, s.err = s.r.Read(s.buf)
		if empty == 100 && s.err == nil && s.end == 0 {
			s.err = io.ErrNoProgress
		}
	}
	if errors.Is(s.err, io.EOF) {
		s.err = io.ErrUnexpectedEOF
	}
	return s.end > 0
}
