package peer

import (
	"errors"
	"strconv"
	"strings"
)

// span is a part of a file: from, and to where it ends, which is not in it.
type span struct{ from, to int64 }

var (
	errRange      = errors.New("the range has to be bytes=FROM-TO, one of them")
	errBeyondFile = errors.New("the range is not in the file")
)

// parseSpan reads a Range header for a file of size bytes. There has to be one
// range, bytes=FROM-TO; bytes=FROM- is to the end. What ends beyond the file is
// errBeyondFile and not cut, for who asks knows the size.
func parseSpan(header string, size int64) (span, error) {
	text, ok := strings.CutPrefix(header, "bytes=")
	first, last, ok2 := strings.Cut(text, "-")
	if !ok || !ok2 {
		return span{}, errRange
	}
	from, err := parseOffset(first)
	to := size
	if err == nil && last != "" {
		if to, err = parseOffset(last); err == nil {
			to++
		}
	}
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (from >= to || to > size):
		return span{}, errBeyondFile
	case err != nil:
		return span{}, errRange
	}
	return span{from, to}, nil
}

// parseOffset reads digits and nothing else, and less than the largest int64.
func parseOffset(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 62)
	return int64(n), err
}
