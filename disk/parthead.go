package disk

import (
	"fmt"
	"io"
)

// WriteHead writes the first n bytes of the part to w, as they are read back from its
// file. They are whole chunks that an earlier process has left: OpenPart has found them
// to be right.
func (p *Part) WriteHead(w io.Writer, n int64) error {
	if n%ChunkSize != 0 || n > p.offset {
		return fmt.Errorf("read head of %s: it has %d whole bytes, not %d", p.id, p.offset, n)
	}
	buf := NewBuffer()
	for at := int64(0); at < n; at += ChunkSize {
		b, err := readDirect(p.file, buf, at, n)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			return fmt.Errorf("read head of %s: %w", p.id, err)
		}
	}
	return nil
}
