package assemble

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const (
	// maxRequest is the length of the longest request in bytes.
	maxRequest = 64 << 20
	// maxSegments limits the segments for which there are requests, or could be.
	maxSegments = 4 << 10
)

// queue has the missing segments in order: received, requested, or not yet requested. Requests deliver segments in any order,
// and the goroutine of Run removes them in order.
type queue struct {
	window   func() int64
	progress clock // time of the last segment from any place, or of an event that explains a delay

	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, when anything changed
	segments []*segment
	fresh    int64 // bytes of segments that were never requested
	returned int64 // bytes of segments that were requested in vain
	received int64 // bytes of segments that were received
	running  []*request
	ended    []*request // whose results the scheduler has not seen

	err error // the reason why no further segments are requested

	free    [][]byte // buffers of chunks
	buffers int      // number of allocated buffers of chunks

	waitingSince time.Time // since when Run has waited for the first segment; zero: it does not
}

// segment is a missing segment.
type segment struct {
	Segment
	buf       []byte   // its verified bytes; nil: not received
	requested bool     // it was requested before, and has its place in the window
	done      bool     // it was received
	by        *request // nil: nothing requests it now
	second    *request // another request for the same segment; nil: there is none
}

// clock is the time of the latest event of a kind. It is safe for concurrent use.
type clock struct {
	begun  time.Time
	latest atomic.Int64 // nanoseconds after begun
}

func (c *clock) start(at time.Time) {
	c.begun = at
	c.latest.Store(0)
}

func (c *clock) touch() { c.latest.Store(int64(time.Since(c.begun))) }

func (c *clock) since() time.Duration {
	return time.Since(c.begun) - time.Duration(c.latest.Load())
}

func (q *queue) start(window func() int64) {
	q.window, q.changed = window, make(chan struct{})
	q.progress.start(time.Now())
}

// fail ends the wait for a segment that no running request delivers: await returns err.
func (q *queue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err = err
	q.notify()
}

// notify wakes all goroutines that wait for a change. The caller holds mu.
func (q *queue) notify() {
	close(q.changed)
	q.changed = make(chan struct{})
}

// wantsMore reports whether the next segments have to be planned, so that each request has its full length.
func (q *queue) wantsMore() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.fresh < 2*maxRequest && len(q.segments) < maxSegments
}

// add adds the segments [first, end) of a plan to the end of the queue, or with asNext to its beginning.
func (q *queue) add(p *Plan, first, end int64, asNext bool) error {
	added := make([]*segment, 0, end-first)
	length := int64(0)
	for n := first; n < end; n++ {
		hash, err := p.hash(n)
		if err != nil {
			return err
		}
		s := &segment{Segment: p.extent(n), requested: asNext}
		s.Hash = hash
		added = append(added, s)
		length += s.Length
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if asNext {
		q.segments, q.returned = slices.Concat(added, q.segments), q.returned+length
	} else {
		q.segments, q.fresh = append(q.segments, added...), q.fresh+length
	}
	q.notify()
	return nil
}

// first returns the missing segment that contains an offset. nil: this node has the bytes from the offset to limit.
func (q *queue) first(offset int64) (s *segment, limit int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.segments) == 0:
		return nil, 1<<63 - 1
	case q.segments[0].Offset > offset:
		return nil, q.segments[0].Offset
	}
	return q.segments[0], 0
}

// await waits until s, the first segment, is received.
func (q *queue) await(ctx context.Context, s *segment) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !s.done {
		if q.err != nil && s.by == nil && s.second == nil {
			return q.err
		}
		if q.waitingSince.IsZero() {
			q.waitingSince = time.Now()
			q.notify() // the scheduler may later request the segment a second time
		}
		if err := q.wait(ctx); err != nil {
			return err
		}
	}
	q.waitingSince = time.Time{}
	return nil
}

// wait waits for a change. The caller holds mu, which is released meanwhile.
func (q *queue) wait(ctx context.Context) error {
	changed := q.changed
	q.mu.Unlock()
	defer q.mu.Lock()
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// remove removes the first segment. buf is a buffer that is not needed any more.
func (q *queue) remove(s *segment, buf []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.segments[0] = nil
	q.segments = q.segments[1:]
	q.received -= s.Length
	s.buf = nil
	q.recycle(s, buf)
	q.notify()
}

// buffer returns a buffer for a segment. The caller holds mu.
func (q *queue) buffer(s *segment) []byte {
	if !s.isChunk() {
		if buf, ok := pieces.Get().(*[]byte); ok && int64(cap(*buf)) >= s.Length {
			return (*buf)[:s.Length]
		}
		return make([]byte, s.Length)
	}
	last := len(q.free) - 1
	if last < 0 {
		q.buffers++
		return disk.NewChunkBuffer()
	}
	buf := q.free[last]
	q.free = q.free[:last]
	return buf
}

// pieces has buffers of segments that are no chunks.
var pieces sync.Pool

// isChunk reports whether the segment is appended as a whole chunk, which needs a buffer of disk.NewChunkBuffer.
func (s *segment) isChunk() bool {
	_, ok := s.Hash.(disk.ChunkHash)
	return ok
}

// recycle keeps the buffer of a segment, or frees it if the window has shrunk: the limit is one buffer for each chunk in the
// window, for each request, and for Run. The caller holds mu.
func (q *queue) recycle(s *segment, buf []byte) {
	switch {
	case !s.isChunk():
		pieces.Put(&buf)
	case q.buffers > int(q.window()/disk.ChunkSize)+len(q.running)+1:
		q.buffers--
	default:
		q.free = append(q.free, buf)
	}
}

// reserved returns the bytes of the window that are in use: received segments, segments that were requested in vain, and
// what running requests still have to receive. One request counts at most as the whole window. The caller holds mu.
func (q *queue) reserved() int64 {
	sum := q.received + q.returned
	for _, r := range q.running {
		sum += min(r.left, q.window())
	}
	return sum
}

// next returns the next free segments in a row for one request of about length bytes. Segments that a failed request did not
// deliver have their place in the window. Others need room for all their bytes, or for half of the window. The caller holds mu.
func (q *queue) next(length int64) []*segment {
	if q.returned == 0 && (q.fresh == 0 || q.reserved() >= q.window()) {
		return nil
	}
	isFree := func(s *segment) bool { return s.by == nil && !s.done }
	begin := slices.IndexFunc(q.segments, isFree) // a segment is free
	first, end := q.segments[begin], begin+1
	for ; end < len(q.segments); end++ {
		s := q.segments[end]
		if !isFree(s) || s.requested != first.requested || s.Offset != q.segments[end-1].End() || s.End() > first.Offset+length {
			break
		}
	}
	bytes := q.segments[end-1].End() - first.Offset
	if reserved := q.reserved(); !first.requested && reserved > 0 && reserved+min(bytes, q.window()/2) > q.window() {
		return nil
	}
	return slices.Clone(q.segments[begin:end])
}

// assign gives segments to a request. The caller holds mu.
func (q *queue) assign(r *request) {
	for _, s := range r.segments {
		if s.requested {
			q.returned -= s.Length
		} else {
			q.fresh -= s.Length
		}
		s.by, s.requested = r, true
		r.left += s.Length
	}
	q.running = append(q.running, r)
}

// begin waits until the window has room for a segment, and returns a buffer for the segment. It returns nil if the request
// must not receive the segment any more.
func (q *queue) begin(ctx context.Context, r *request, s *segment) ([]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch {
		case s.by != r && s.second != r:
			return nil, nil
		case s == q.segments[0] || q.received+s.Length <= q.window():
			r.began = cmp.Or(r.began, time.Now())
			return q.buffer(s), nil
		}
		r.waits = true
		err := q.wait(ctx)
		if r.waits = false; err != nil {
			return nil, err
		}
	}
}

// yield ends a request that waits for room in the window, if no request has the first segment. Without that segment nothing
// is appended, so there would never be room. The provider of the ended request can then send that segment. The caller holds
// mu.
func (q *queue) yield() {
	if len(q.segments) == 0 || q.segments[0].by != nil || q.segments[0].done {
		return
	}
	if i := slices.IndexFunc(q.running, func(r *request) bool { return r.waits }); i >= 0 {
		q.running[i].cancel(errNotNeeded)
	}
}

// drop returns the buffer of a segment that was not received.
func (q *queue) drop(s *segment, buf []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.recycle(s, buf)
}

// deliver stores a verified segment, and ends the other request for it. It reports whether the segment was still missing.
func (q *queue) deliver(r *request, s *segment, buf []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	r.health.measure(time.Since(r.began), s.Length)
	r.began = time.Time{}
	if s.done {
		q.recycle(s, buf)
		return false
	}
	if s.by != nil && s.by != r {
		s.by.cancel(errSlow)
	} else if s.second != nil && s.second != r {
		s.second.cancel(errNotNeeded)
	}
	if s.by != nil {
		s.by.left -= s.Length
	}
	s.buf, s.done, s.by, s.second = buf, true, nil, nil
	q.received += s.Length
	r.delivered += s.Length
	q.progress.touch()
	q.notify()
	return true
}

// end records that a request has ended, and frees the segments that it did not deliver for another request.
func (q *queue) end(r *request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running = slices.DeleteFunc(q.running, func(other *request) bool { return other == r })
	r.others = q.requestsOf(r.candidate.Host)
	for _, s := range r.segments {
		switch {
		case s.second == r:
			s.second = nil
		case s.by == r:
			if s.by, s.second = s.second, nil; s.by == nil {
				q.returned += s.Length
			} else {
				s.by.left += s.Length
			}
		}
	}
	q.ended = append(q.ended, r)
	q.notify()
}

// noteSuccesses records successes of requests that ended after the scheduler, which ends when all segments are appended.
func (q *queue) noteSuccesses() {
	for _, r := range q.ended {
		if r.err == nil && r.delivered > 0 {
			r.health.succeed()
		}
	}
}
