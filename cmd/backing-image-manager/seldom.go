package main

import (
	"regexp"
	"time"
)

// seldom says what it was told of, but the like of it, other numbers apart, only once in
// a while: two clients of one upload disturb each other with every request.
type seldom struct {
	every time.Duration
	last  map[string]time.Time
}

var numbers = regexp.MustCompile(`[0-9]+`)

// due reports whether the text is to be said now.
func (s *seldom) due(text string, now time.Time) bool {
	like := numbers.ReplaceAllString(text, "0")
	if last, said := s.last[like]; said && now.Sub(last) < s.every {
		return false
	}
	if s.last == nil {
		s.last = map[string]time.Time{}
	}
	s.last[like] = now
	return true
}
