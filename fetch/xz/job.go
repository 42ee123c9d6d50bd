package xz

import (
	"bytes"
	"errors"
	"io"
	"sync/atomic"
)

// job decodes a block that is in memory. Its buffers are used again for another block.
type job struct {
	header   *blockHeader
	packed   bytes.Buffer // the data and the checksum
	data     lzma2
	unpacked []byte
	err      error
	done     chan struct{}
}

// memory returns the number of bytes that a job needs for the block. It is 0 if no job can decode the block,
// because the header does not have the sizes, or because of a filter.
func (h *blockHeader) memory() int64 {
	if h.packed < 0 || h.unpacked < 0 || h.code != nil {
		return 0
	}
	if h.packed > maxAhead || h.unpacked > maxAhead {
		return maxAhead + 1
	}
	return 2*h.packed + h.unpacked // bytes.Buffer may double its size
}

// read reads the packed bytes of the block.
func (j *job) read(in *input, h *blockHeader) error {
	j.header, j.unpacked, j.err, j.done = h, nil, nil, make(chan struct{})
	j.packed.Reset()
	size := h.packed + -h.packed&3 + int64(h.check.size())
	n, err := io.CopyN(&j.packed, in.r, size)
	in.n += n
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

var errStopped = errors.New("xz: the reader is closed")

// run decodes the block.
func (j *job) run(stopped *atomic.Bool) {
	defer close(j.done)
	b := j.header.open(&input{r: &j.packed}, &j.data)
	// The window gets room for the whole block: block.next permits no more bytes.
	j.data.limit = int(j.header.unpacked) + slack
	for j.err == nil {
		_, j.err = b.next()
		if stopped.Load() {
			j.err = errStopped
		}
	}
	j.unpacked = j.data.buf[:j.data.pos]
	if j.err == io.EOF {
		j.err = nil
	}
}
