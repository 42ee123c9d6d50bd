package xz

import (
	"bufio"
	"io"
	"sync/atomic"
)

// maxAhead limits the memory for blocks that are decoded at the same time, in bytes: four blocks of
// "xz -T", which have 24 MiB, with 8 MiB of packed bytes each. A larger block is decoded alone, while it is read.
const maxAhead = 128 << 20

// Reader unpacks a file. It must be closed.
type Reader struct {
	in            *input
	maxDictionary int
	workers       int   // maximum number of blocks that are decoded at the same time, besides one whose bytes are read
	maxAhead      int64 // maximum of memory

	out []byte // unpacked, but not yet read
	err error  // of the bytes behind out

	check    check
	records  *records // of the present stream; nil: between streams
	complete bool     // whether a stream has ended

	header  *blockHeader // of the next block, if it was read
	failure error        // of the read of the next block
	block   *block       // decoded by serial while it is read
	serial  lzma2
	queue   []*job // blocks before header, in their order
	last    *job   // whose bytes are in out
	free    []*job // their buffers are used again
	memory  int64  // of queue, last and free
	stopped atomic.Bool
}

// NewReader returns a reader of the unpacked bytes of r. A block whose dictionary is larger than
// maxDictionary bytes leads to ErrDictionary. At most so many workers decode blocks at the same time, besides one
// whose bytes are read. With one worker, no goroutine runs, and each block is decoded while it is read.
func NewReader(r io.Reader, maxDictionary, workers int) *Reader {
	return &Reader{
		in:            &input{r: bufio.NewReaderSize(r, 64<<10)},
		maxDictionary: maxDictionary,
		workers:       workers,
		maxAhead:      maxAhead,
	}
}

// Read returns unpacked bytes. It returns io.EOF only after a complete file.
func (r *Reader) Read(p []byte) (int, error) {
	for len(r.out) == 0 && len(p) > 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.out, r.err = r.next()
	}
	n := copy(p, r.out)
	r.out = r.out[n:]
	return n, nil
}

// Close stops the decoders, and waits until they have ended. It does not close the reader of the
// packed bytes. Afterwards, Read must not be called.
func (r *Reader) Close() error {
	r.stopped.Store(true)
	for _, j := range r.queue {
		<-j.done
	}
	return nil
}

// next returns more unpacked bytes, possibly none. They are valid until the next call.
func (r *Reader) next() ([]byte, error) {
	if r.last != nil {
		r.free, r.last = append(r.free, r.last), nil
	}
	if r.block == nil {
		r.readAhead()
		if len(r.queue) > 0 {
			r.last, r.queue = r.queue[0], r.queue[1:]
			<-r.last.done
			return r.last.unpacked, r.last.err
		}
		if r.failure != nil {
			return nil, r.failure
		}
		r.free, r.memory = nil, 0
		r.block, r.header = r.header.open(r.in, &r.serial), nil
	}
	p, err := r.block.next()
	if err == io.EOF {
		r.records.add(r.block.header)
		r.block, err = nil, nil
	}
	return p, err
}

// readAhead starts jobs for the next blocks. Then there is a job, or the next block has a header that
// no job can decode, or it cannot be read.
func (r *Reader) readAhead() {
	for r.failure == nil && len(r.queue) <= r.workers {
		if r.header == nil {
			if r.header, r.failure = r.nextHeader(); r.failure != nil {
				return
			}
		}
		if r.workers == 1 || !r.header.fitsJob() {
			return
		}
		j := r.newJob(r.header)
		if j == nil {
			return
		}
		if r.failure = j.read(r.in, r.header); r.failure != nil {
			return
		}
		r.records.add(r.header)
		r.queue, r.header = append(r.queue, j), nil
		go j.run(&r.stopped)
	}
}

// newJob returns a job for a block, or nil if the memory is not sufficient.
func (r *Reader) newJob(h *blockHeader) *job {
	for len(r.free) > 0 {
		j := r.free[len(r.free)-1]
		r.free = r.free[:len(r.free)-1]
		if more := j.grow(h); r.memory+more <= r.maxAhead {
			r.memory += more
			return j
		}
		r.memory -= j.memory()
	}
	j := new(job)
	more := j.grow(h)
	if r.memory+more > r.maxAhead {
		return nil
	}
	r.memory += more
	r.serial.buf = nil
	return j
}

// nextHeader reads the header of the next block, after the end of the stream and the header of the next
// one. At the end of the file, it returns io.EOF.
func (r *Reader) nextHeader() (*blockHeader, error) {
	for {
		if r.records == nil {
			c, err := r.nextStream()
			if err != nil {
				return nil, err
			}
			r.check, r.records = c, newRecords()
		}
		first, err := r.in.ReadByte()
		if err != nil {
			return nil, err
		}
		if first != 0 {
			return readBlockHeader(r.in, first, r.check, r.maxDictionary)
		}
		index, err := readIndex(r.in, r.records)
		if err != nil {
			return nil, err
		}
		if err := readFooter(r.in, r.check, index); err != nil {
			return nil, err
		}
		r.records, r.complete = nil, true
	}
}

// nextStream reads the header of the next stream. Between streams and behind the last one, the file may
// have zeros, four or a multiple of it. At the end of the file, it returns io.EOF.
func (r *Reader) nextStream() (check, error) {
	magic := make([]byte, len(headerMagic))
	for {
		err := r.in.read(magic[:1])
		switch {
		case err == io.ErrUnexpectedEOF && r.complete:
			return 0, io.EOF
		case err != nil:
			return 0, err
		}
		if magic[0] != 0 || !r.complete {
			break
		}
		if err := r.in.read(magic[1:4]); err != nil {
			return 0, err
		}
		if string(magic[:4]) != "\x00\x00\x00\x00" {
			return 0, errMagic
		}
	}
	if err := r.in.read(magic[1:]); err != nil && magic[0] == headerMagic[0] {
		return 0, err
	}
	if string(magic) != headerMagic {
		return 0, errMagic
	}
	return readHeader(r.in)
}
