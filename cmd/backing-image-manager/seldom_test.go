package main

import (
	"testing"
	"time"
)

func TestSeldom(t *testing.T) {
	s, begun := seldom{every: time.Minute}, time.Now()
	for _, one := range []struct {
		text  string
		after time.Duration
		due   bool
	}{
		{"the upload is at 4096 bytes, and these are for 0", 0, true},
		{"the upload is at 8192 bytes, and these are for 4096", time.Second, false},
		{"connection refused", time.Second, true},
		{"the upload is at 12288 bytes, and these are for 8192", 59 * time.Second, false},
		{"the upload is at 16384 bytes, and these are for 8192", 61 * time.Second, true},
	} {
		if due := s.due(one.text, begun.Add(one.after)); due != one.due {
			t.Errorf("%q after %v: due is %v", one.text, one.after, due)
		}
	}
}
