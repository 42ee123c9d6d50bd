package disk

import (
	"errors"
	"hash"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// pipelineDepth is the number of chunks in a pipeline. It limits the memory of a transfer, and the
// number of bytes that are lost after a kill.
const pipelineDepth = 6

// directAlign is the alignment of addresses, offsets and lengths for O_DIRECT. All devices accept it.
const directAlign = 4096

// chunk is a piece of an image in a pipeline.
type chunk struct {
	n       int64     // index in the image
	data    []byte    // at most ChunkSize bytes; only the last chunk is shorter
	zero    bool      // all of data is zero
	saved   bool      // its bytes and its hash are already on the disk
	inPlace bool      // its bytes are already in the partial file; its hash is not in the journal
	hash    ChunkHash // zero: not computed yet

	buf     []byte // aligned, ChunkSize bytes
	pending atomic.Int32
}

// pipeline passes chunks, in order, to consumers. Each consumer runs in its own goroutine, so that
// receiving, hashing and writing overlap. The buffers are reused.
type pipeline struct {
	free   chan *chunk
	queues []chan *chunk
	done   sync.WaitGroup

	once sync.Once
	stop chan struct{} // closed at the first error
	err  error         // set before stop is closed
}

// newPipeline starts a goroutine for each consumer. The first error of a consumer stops all of them.
// The caller must call close or abort.
func newPipeline(consumers ...func(*chunk) error) *pipeline {
	p := &pipeline{free: make(chan *chunk, pipelineDepth), stop: make(chan struct{})}
	for range pipelineDepth {
		p.free <- &chunk{}
	}
	for _, consume := range consumers {
		queue := make(chan *chunk, pipelineDepth)
		p.queues = append(p.queues, queue)
		p.done.Go(func() { p.work(queue, consume) })
	}
	return p
}

func (p *pipeline) work(queue chan *chunk, consume func(*chunk) error) {
	for c := range queue {
		if !p.stopped() {
			if err := consume(c); err != nil {
				p.fail(err)
			}
		}
		if c.pending.Add(-1) == 0 { // this was the last consumer of this chunk
			p.free <- c
		}
	}
}

func (p *pipeline) fail(err error) {
	p.once.Do(func() {
		p.err = err
		close(p.stop)
	})
}

func (p *pipeline) stopped() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// get waits for a free chunk, or for the first error.
func (p *pipeline) get() (*chunk, error) {
	select {
	case c := <-p.free:
		if c.buf == nil { // allocated late, because a small image needs few buffers
			c.buf = alignedBuffer(ChunkSize)
		}
		c.data, c.zero, c.saved, c.inPlace, c.hash = c.buf[:0], false, false, false, ChunkHash{}
		return c, nil
	case <-p.stop:
		return nil, p.err
	}
}

// put passes c to all consumers. The caller must not use c after that.
func (p *pipeline) put(c *chunk) {
	c.zero = allZero(c.data)
	if c.zero {
		c.data = zeros[:len(c.data)] // all chunks of zeros share one buffer, which stays in the CPU cache
	}
	c.pending.Store(int32(len(p.queues)))
	for _, queue := range p.queues {
		queue <- c
	}
}

// drain waits until the consumers have processed all chunks. owned is the number of chunks that the
// caller took with get, and did not return with put.
func (p *pipeline) drain(owned int) error {
	var idle []*chunk
	defer func() {
		for _, c := range idle {
			p.free <- c
		}
	}()
	for range pipelineDepth - owned {
		select {
		case c := <-p.free:
			idle = append(idle, c)
		case <-p.stop:
			return p.err
		}
	}
	return nil
}

// stream is the end of a partial file, to which bytes are appended.
type stream struct {
	pipeline *pipeline // nil once closed
	current  *chunk    // being filled; nil: none
	offset   int64     // bytes appended so far, including the bytes in current
}

// Offset returns the number of appended bytes: the offset of the next byte to append. The bytes of an
// incomplete chunk are only in memory.
func (s *stream) Offset() int64 { return s.offset }

// pending returns the number of bytes in the current chunk.
func (s *stream) pending() int64 {
	if s.current == nil {
		return 0
	}
	return int64(len(s.current.data))
}

// ended reports whether a short chunk was put into the pipeline: no chunk can follow it.
func (s *stream) ended() bool { return s.current == nil && s.offset%ChunkSize != 0 }

// drain waits until all chunks in the pipeline are written.
func (s *stream) drain() error {
	if s.current != nil {
		return s.pipeline.drain(1)
	}
	return s.pipeline.drain(0)
}

// fill makes an empty chunk the current chunk, if there is no current chunk.
func (s *stream) fill() (err error) {
	if s.current == nil {
		if s.current, err = s.pipeline.get(); err == nil {
			s.current.n = s.offset / ChunkSize
		}
	}
	return err
}

// close waits until the consumers have processed all chunks and returns the first error.
func (p *pipeline) close() error {
	for _, queue := range p.queues {
		close(queue)
	}
	p.done.Wait()
	return p.err
}

var errAborted = errors.New("aborted")

// abort closes the pipeline; chunks in it may remain unprocessed.
func (p *pipeline) abort() {
	p.fail(errAborted)
	_ = p.close() // errAborted, or an error that get has already returned
}

// hashes computes the digests of a whole image from its chunks.
type hashes struct{ sha512, sha256 hash.Hash }

// newHashes returns hashes, and the consumers that write chunks to them.
func newHashes(withSHA256 bool) (*hashes, []func(*chunk) error) {
	h := &hashes{sha512: ident.SHA512.New()}
	consumers := []func(*chunk) error{func(c *chunk) error { h.sha512.Write(c.data); return nil }}
	if withSHA256 {
		h.sha256 = ident.SHA256.New()
		consumers = append(consumers, func(c *chunk) error { h.sha256.Write(c.data); return nil })
	}
	return h, consumers
}

// digests returns the digests. The pipeline must be closed before. sum256 is zero if it was not
// computed.
func (h *hashes) digests() (sum512, sum256 ident.Digest) {
	if h.sha256 != nil {
		sum256 = ident.SHA256.Digest(h.sha256)
	}
	return ident.SHA512.Digest(h.sha512), sum256
}

func alignedBuffer(size int) []byte {
	b := make([]byte, size+directAlign)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (directAlign - 1)
	return b[skip : skip+size : skip+size]
}
