package qcow2

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
)

// patches is a Source of zeros with some pieces of bytes, in order.
type patches struct {
	size   int64
	pieces []patch
}

type patch struct {
	off int64
	b   []byte
}

func (s *patches) Size() int64 { return s.size }

func (s *patches) ReadAt(p []byte, off int64) (int, error) {
	want := len(p)
	p = p[:max(0, min(int64(want), s.size-off))]
	clear(p)
	for _, c := range s.pieces {
		if from, to := max(off, c.off), min(off+int64(len(p)), c.off+int64(len(c.b))); from < to {
			copy(p[from-off:], c.b[from-c.off:to-c.off])
		}
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

func (s *patches) NextData(off int64) (start, end int64, err error) {
	for _, c := range s.pieces {
		if end := c.off + int64(len(c.b)); end > off {
			return max(c.off, off), end, nil
		}
	}
	return 0, 0, io.EOF
}

// randomPatches creates a disk with pieces of random bytes, text and zeros.
func randomPatches(size int64, r *rand.Rand) *patches {
	s := &patches{size: size}
	for off := r.Int64N(size/4 + 1); off < size; {
		b := make([]byte, min(1+r.Int64N(1<<r.IntN(23)), size-off))
		switch r.IntN(4) {
		case 0:
			for i := range b {
				b[i] = byte(r.Uint32())
			}
		case 1:
			copy(b, bytes.Repeat([]byte(fmt.Sprintf("line %d\n", r.IntN(1000))), len(b)/6+1))
		case 2:
			for i := range b {
				b[i] = byte(r.IntN(3))
			}
		}
		s.pieces = append(s.pieces, patch{off, b})
		off += int64(len(b))
		if r.IntN(3) > 0 {
			off += r.Int64N(1 << r.IntN(24))
		}
	}
	return s
}
