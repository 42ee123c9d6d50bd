// Package exactly reads as many bytes as a caller expects, or returns an error.
package exactly

import (
	"errors"
	"fmt"
	"io"
)

// ReadAt fills b from an offset of r. If r ends before b is full, the error wraps io.ErrUnexpectedEOF.
func ReadAt(r io.ReaderAt, b []byte, offset int64) error {
	n, err := r.ReadAt(b, offset)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read at %d: %w", offset, err)
}

// Read fills b with all bytes of r. It is an error if there are more or fewer.
func Read(r io.Reader, b []byte) error {
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	var more [1]byte
	switch n, err := io.ReadFull(r, more[:]); {
	case n > 0:
		return fmt.Errorf("there are more than %d bytes", len(b))
	case err != io.EOF:
		return err
	}
	return nil
}
