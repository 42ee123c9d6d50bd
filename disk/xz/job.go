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
	packed   []byte // the data and the checksum
	data     lzma2
	unpacked []byte
	err      error
	done     chan struct{}

	maxPacked, maxUnpacked int64 // of all blocks that it decoded: the sizes of the buffers
}

// fitsJob reports whether a job can decode the block: the header has the sizes, there is no other filter, and
// the sum of the sizes does not overflow.
func (h *blockHeader) fitsJob() bool {
	return h.code == nil && h.packed >= 0 && h.unpacked >= 0 && h.packed <= maxAhead && h.unpacked <= maxAhead
}

func (j *job) memory() int64 { return j.maxPacked + j.maxUnpacked }

// grow returns how much more memory the job needs for the block than it has.
func (j *job) grow(h *blockHeader) int64 {
	return max(0, h.packed-j.maxPacked) + max(0, h.unpacked-j.maxUnpacked)
}

// read reads the packed bytes of the block.
func (j *job) read(in *input, h *blockHeader) error {
	j.header, j.unpacked, j.err, j.done = h, nil, nil, make(chan struct{})
	j.maxPacked, j.maxUnpacked = max(j.maxPacked, h.packed), max(j.maxUnpacked, h.unpacked)
	size := int(h.packed + -h.packed&3 + h.check.size())
	j.packed = j.packed[:0]
	for len(j.packed) < size {
		// The buffer doubles, because the header may promise more bytes than the file has.
		if len(j.packed) == cap(j.packed) {
			grown := make([]byte, len(j.packed), min(size, max(minPacked, 2*cap(j.packed))))
			copy(grown, j.packed)
			j.packed = grown
		}
		begin := len(j.packed)
		j.packed = j.packed[:min(size, cap(j.packed))]
		if err := in.read(j.packed[begin:]); err != nil {
			return err
		}
	}
	return nil
}

// minPacked is the least size of the buffer for packed bytes, if the block is not smaller.
const minPacked = 64 << 10

var errStopped = errors.New("xz: the reader is closed")

// run decodes the block.
func (j *job) run(stopped *atomic.Bool) {
	defer close(j.done)
	b := j.header.open(&input{r: bytes.NewReader(j.packed)}, &j.data)
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
