package disk

import (
	"fmt"
	"io"
)

// Send writes the bytes [from, to) to w, by sendfile where w can, in pieces that end at
// the borders of chunks. It calls before, unless that is nil, ahead of each piece, and
// ends with its error. Only one Send of a Reader may run at a time.
func (r *Reader) Send(w io.Writer, from, to int64, before func() error) error {
	if from < 0 || to > r.Size() || from > to {
		return fmt.Errorf("send image: there are no bytes from %d to %d of %d", from, to, r.Size())
	}
	if _, err := r.s.f.Seek(from, io.SeekStart); err != nil {
		return fmt.Errorf("send image: %w", err)
	}
	r.pages.only(from, to)
	defer r.pages.only(0, r.Size())
	for from < to {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		n := from / ChunkSize
		r.pages.visit(n)
		sent, err := io.CopyN(w, r.s.f, min((n+1)*ChunkSize, to)-from)
		if err != nil {
			return fmt.Errorf("send image: %w", err)
		}
		from += sent
	}
	return nil
}
