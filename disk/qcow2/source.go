package qcow2

import "io"

// Source is a disk of which large parts may be zeros that nobody ever wrote.
//
// It is not for concurrent use.
type Source interface {
	// ReadAt reads what a guest sees, zeros where there is no data. It fills p, or
	// returns io.EOF where the disk ends.
	io.ReaderAt

	// Size returns the bytes of the disk that a guest sees.
	Size() int64

	// NextData returns the next range, from off on, that may hold something else
	// than zeros: off <= start < end <= Size. There are only zeros between off and
	// start. The next range may begin right at end. io.EOF: there is none.
	NextData(off int64) (start, end int64, err error)
}
