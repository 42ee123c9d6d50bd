package disk

import (
	"errors"
	"hash"
	"sync"
	"sync/atomic"
	"unsafe"
)

// pipelineDepth is how many chunks are under way at once. It bounds the memory
// of a transfer, and what kill -9 loses of it.
const pipelineDepth = 6

// directAlign is what O_DIRECT wants of addresses, offsets and lengths on every
// device that is in use.
const directAlign = 4096

// chunk is a piece of an image on its way to all consumers of a pipeline.
type chunk struct {
	n       int64     // index in the image
	data    []byte    // at most ChunkSize bytes; only the last one has fewer
	zero    bool      // all of data is zero
	saved   bool      // it came from the part itself
	inPlace bool      // its bytes are in the part's file already, and its sum is not in the journal
	sum     ChunkHash // where it is known already

	buf     []byte // aligned, ChunkSize bytes
	pending atomic.Int32
}

// pipeline hands chunks, in order, to consumers that each work in a goroutine of
// their own, so that hashing, writing and receiving overlap. The buffers are
// used again and again.
type pipeline struct {
	free   chan *chunk
	queues []chan *chunk
	done   sync.WaitGroup

	once sync.Once
	stop chan struct{} // closed at the first error
	err  error         // set before stop is closed
}

// newPipeline starts a goroutine for each consumer. The first error of any ends
// the work of all; close must be called in any case.
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
		if c.pending.Add(-1) == 0 {
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

// get waits for a chunk that is free, or for the first error.
func (p *pipeline) get() (*chunk, error) {
	select {
	case c := <-p.free:
		if c.buf == nil { // a small image needs few of them
			c.buf = alignedBuffer(ChunkSize)
		}
		c.data, c.zero, c.saved, c.inPlace, c.sum = c.buf[:0], false, false, false, ChunkHash{}
		return c, nil
	case <-p.stop:
		return nil, p.err
	}
}

// put hands c to all consumers. The caller must not touch it any more.
func (p *pipeline) put(c *chunk) {
	c.zero = allZero(c.data)
	if c.zero {
		c.data = zeros[:len(c.data)] // one buffer that stays in the processor's cache
	}
	c.pending.Store(int32(len(p.queues)))
	for _, queue := range p.queues {
		queue <- c
	}
}

// drain waits until the consumers are through with all that was put, when the
// caller holds so many chunks.
func (p *pipeline) drain(held int) error {
	var idle []*chunk
	defer func() {
		for _, c := range idle {
			p.free <- c
		}
	}()
	for range pipelineDepth - held {
		select {
		case c := <-p.free:
			idle = append(idle, c)
		case <-p.stop:
			return p.err
		}
	}
	return nil
}

// close waits until all chunks are worked off and returns the first error.
func (p *pipeline) close() error {
	for _, queue := range p.queues {
		close(queue)
	}
	p.done.Wait()
	return p.err
}

var errAborted = errors.New("aborted")

// abort is close for one who does not want the result.
func (p *pipeline) abort() {
	p.fail(errAborted)
	_ = p.close() // it is errAborted, or what get has told already
}

// hashes computes the digests of a whole image as its chunks pass.
type hashes struct{ sha512, sha256 hash.Hash }

// newHashes also returns the consumers that feed them.
func newHashes(withSHA256 bool) (*hashes, []func(*chunk) error) {
	h := &hashes{sha512: SHA512.New()}
	consumers := []func(*chunk) error{func(c *chunk) error { h.sha512.Write(c.data); return nil }}
	if withSHA256 {
		h.sha256 = SHA256.New()
		consumers = append(consumers, func(c *chunk) error { h.sha256.Write(c.data); return nil })
	}
	return h, consumers
}

// sums returns the digests once the pipeline is closed.
func (h *hashes) sums() (sum512, sum256 Digest) {
	if h.sha256 != nil {
		sum256 = SHA256.Digest(h.sha256)
	}
	return SHA512.Digest(h.sha512), sum256
}

func alignedBuffer(size int) []byte {
	b := make([]byte, size+directAlign)
	skip := -int(uintptr(unsafe.Pointer(&b[0]))) & (directAlign - 1)
	return b[skip : skip+size : skip+size]
}
