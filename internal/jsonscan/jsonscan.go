// Package jsonscan reads JSON documents of any length from untrusted programs, in bounded memory.
package jsonscan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// maxNesting limits a value that is passed over; a real document has 4 levels.
const maxNesting = 100

// Scanner reads a JSON document from a stream. Its memory does not depend on the document: it decodes one
// element at a time, and passes over those that the caller does not want. The caller limits the number of
// elements, and the reader the length of the document.
type Scanner struct {
	*json.Decoder
	r          io.Reader
	maxElement int64
	read       int64
}

// New returns a Scanner of a document in r. At most maxElement bytes of JSON are in memory at once: those of a value that is
// decoded.
func New(r io.Reader, maxElement int64) *Scanner {
	s := &Scanner{r: r, maxElement: maxElement}
	s.Decoder = json.NewDecoder(s)
	return s
}

// Read passes bytes to the Decoder, until there are maxElement bytes that it has not used: it keeps them
// until they are a whole element.
func (s *Scanner) Read(p []byte) (int, error) {
	if s.read-s.InputOffset() > s.maxElement {
		return 0, fmt.Errorf("an element is too large: it has more than %d bytes", s.maxElement)
	}
	n, err := s.r.Read(p)
	s.read += int64(n)
	return n, err
}

// Object reads an object. It calls field after each key, and field reads the value.
func (s *Scanner) Object(field func(key string) error) error {
	switch t, err := s.next(); {
	case err != nil:
		return err
	case t != json.Delim('{'):
		return fmt.Errorf("want an object, got %v", t)
	}
	for s.More() {
		key, err := s.next()
		if err != nil {
			return err
		}
		if err := field(key.(string)); err != nil { // the Decoder rejects keys that are not strings
			return err
		}
	}
	_, err := s.next()
	return err
}

// Array reads an array, and calls element to read each element. It reads null as an empty array.
func (s *Scanner) Array(element func() error) error {
	switch t, err := s.next(); {
	case err != nil:
		return err
	case t == nil:
		return nil
	case t != json.Delim('['):
		return fmt.Errorf("want an array, got %v", t)
	}
	for s.More() {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := s.next()
	return err
}

// Skip passes over the next value.
func (s *Scanner) Skip() error {
	for depth := 0; ; {
		t, err := s.next()
		switch {
		case err != nil:
			return err
		case t == json.Delim('{'), t == json.Delim('['):
			depth++
		case t == json.Delim('}'), t == json.Delim(']'):
			depth--
		}
		switch {
		case depth == 0:
			return nil
		case depth > maxNesting:
			return fmt.Errorf("a value has more than %d levels", maxNesting)
		}
	}
}

// Finish returns an error if anything but white space follows.
func (s *Scanner) Finish() error {
	if _, err := s.Token(); !errors.Is(err, io.EOF) {
		return errors.Join(errors.New("there is more after the document"), err)
	}
	return nil
}

// next returns the next token. The document must not end before it.
func (s *Scanner) next() (json.Token, error) {
	t, err := s.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return t, err
}
