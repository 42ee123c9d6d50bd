package peer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const (
	// windowChunks is the largest window: how many data chunks may be requested, or
	// received and not yet consumed, at once. A pull needs memory for these, one for each
	// lane, and one for the consumer.
	windowChunks = 22
	// sharedChunks is what all pulls of a Client share; each has minWindowChunks at least.
	sharedChunks, minWindowChunks = 2 * windowChunks, 6
	// maxAhead is how many chunks, most of them zeros, a pull looks ahead for data.
	maxAhead = 4096
)

// window is the work queue of a pull: the data chunks that are requested or received and
// not yet consumed, in order. Lanes take runs of chunks from it and deliver them in any
// order; one consumer takes them out in order. Zero chunks are never in it.
type window struct {
	manifest    *disk.Manifest
	activePulls *atomic.Int32 // of the Client, which share the memory

	mu         sync.Mutex      // also guards the fields of lanes that say so
	changed    chan struct{}   // closed, and replaced, when anything changed
	pending    []*pendingChunk // in order
	next       int64           // the chunk that the consumer needs next
	unassigned int64           // the first chunk that was never assigned, or skipped as zeros
	lanes      int             // running
	free       [][]byte
	buffers    int // allocated

	waited       time.Duration // by the consumer, for chunks, until waitingSince
	waitingSince time.Time     // zero: the consumer does not wait
}

// pendingChunk is a data chunk in the window.
type pendingChunk struct {
	n     int64
	buf   []byte // nil: not received yet
	lane  *lane  // that must receive it; nil: none, because the lane failed
	hedge *lane  // that requested it too, because lane is slow; nil: none
}

// chunkRun is consecutive data chunks for one request: [from, to).
type chunkRun struct{ from, to int64 }

func (r chunkRun) empty() bool { return r.from == r.to }

func newWindow(m *disk.Manifest, next int64, pulls *atomic.Int32) *window {
	return &window{manifest: m, activePulls: pulls, next: next, unassigned: next, changed: make(chan struct{})}
}

// size returns the present size of the window in chunks. It shrinks when other pulls run.
func (w *window) size() int {
	return min(windowChunks, max(minWindowChunks, sharedChunks/max(1, int(w.activePulls.Load()))))
}

// notify wakes all goroutines that wait for a change. The caller holds mu.
func (w *window) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// waitFor waits for data chunk n, which must be the next one, and removes it. The caller
// returns the buffer by release.
func (w *window) waitFor(ctx context.Context, n int64) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = n
	w.waitingSince = time.Now()
	for len(w.pending) == 0 || w.pending[0].n != n || w.pending[0].buf == nil {
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		w.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	w.waited += time.Since(w.waitingSince)
	w.waitingSince = time.Time{}
	buf := w.pending[0].buf
	w.pending = append(w.pending[:0], w.pending[1:]...)
	w.next = n + 1
	w.notify()
	return buf, nil
}

// skipTo records that the consumer passed zeros and needs chunk n next.
func (w *window) skipTo(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = n
	if n%(maxAhead/4) == 0 { // lanes may wait for assignNext to look further ahead
		w.notify()
	}
}

// totalWait returns how long the consumer has waited for chunks altogether.
func (w *window) totalWait() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingSince.IsZero() {
		return w.waited
	}
	return w.waited + time.Since(w.waitingSince)
}

// currentWait returns how long the consumer has been waiting for the next chunk.
func (w *window) currentWait() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingSince.IsZero() {
		return 0
	}
	return time.Since(w.waitingSince)
}

// buffer returns a buffer for one chunk. Lanes only need buffers for chunks that are
// assigned to them, so there are never more than chunks in the window and lanes.
func (w *window) buffer() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.free) == 0 {
		w.buffers++
		return disk.NewChunkBuffer()
	}
	last := len(w.free) - 1
	buf := w.free[last]
	w.free = w.free[:last]
	return buf
}

// release returns a buffer.
func (w *window) release(buf []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recycle(buf)
}

// recycle keeps a buffer for reuse, or drops it if the window has shrunk: the limit is one
// for each chunk in the window, one for each lane, and one for the consumer. The caller
// holds mu.
func (w *window) recycle(buf []byte) {
	if w.buffers > w.size()+w.lanes+1 {
		w.buffers--
		return
	}
	w.free = append(w.free, buf)
}

// startChunk records that l begins to receive chunk n. It returns false if the chunk is no
// longer assigned to l, which must then end its request.
func (w *window) startChunk(l *lane, n int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.find(n)
	if c == nil || c.buf != nil || c.lane != l && c.hedge != l {
		return false
	}
	l.startReceiving(n, w.manifest.ChunkLength(n))
	return true
}

// deliver stores a verified chunk and cancels the other lane that receives it. It reports
// whether the chunk was still missing. The window owns buf in any case.
func (w *window) deliver(l *lane, n int64, buf []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.find(n)
	if c == nil || c.buf != nil {
		w.recycle(buf)
		return false
	}
	if c.hedge == l && c.lane != nil {
		c.lane.cancelChunk(n, errSlow)
	} else if c.hedge != nil {
		c.hedge.cancelChunk(n, errHedgeLost)
	}
	c.buf = buf
	w.notify()
	return true
}

// unassign takes back the chunks that l did not deliver.
func (w *window) unassign(l *lane) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.pending {
		switch {
		case c.hedge == l:
			c.hedge = nil
		case c.lane == l:
			c.lane, c.hedge = c.hedge, nil
		}
	}
	w.notify()
}

func (w *window) find(n int64) *pendingChunk {
	for _, c := range w.pending {
		if c.n == n {
			return c
		}
	}
	return nil
}

// addLane and removeLane count the running lanes.
func (w *window) addLane() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes++
}

func (w *window) removeLane() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes--
}

// nextRun waits until there are chunks for l to request. It returns an empty run when all
// chunks are received.
func (w *window) nextRun(ctx context.Context, l *lane) (chunkRun, error) {
	for {
		r, recheck, changed, err := w.assign(l)
		if err != nil || !r.empty() {
			return r, err
		}
		if changed == nil {
			return chunkRun{}, nil
		}
		var timer <-chan time.Time
		if recheck > 0 {
			timer = time.After(recheck)
		}
		select {
		case <-changed:
		case <-timer:
		case <-ctx.Done():
			return chunkRun{}, context.Cause(ctx)
		}
	}
}

// assign assigns a run of chunks to l: those that another lane failed to get, else the
// next ones, else those of a slow lane. If there are none, it returns when to call it
// again: when changed is closed, and after recheck unless that is 0. Both are zero if all
// chunks are received.
func (w *window) assign(l *lane) (r chunkRun, recheck time.Duration, changed chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	length := l.runLength(w.lanes)
	if r := w.assignReturned(l, length); !r.empty() {
		return r, 0, nil, nil
	}
	if r, err = w.assignNext(l, length); err != nil || !r.empty() {
		return r, 0, nil, err
	}
	r, recheck = w.stealOrHedge(l, length)
	if !r.empty() || w.unassigned == w.manifest.Chunks() && w.allReceived() {
		return r, 0, nil, nil
	}
	return chunkRun{}, recheck, w.changed, nil
}

func (w *window) allReceived() bool {
	for _, c := range w.pending {
		if c.buf == nil {
			return false
		}
	}
	return true
}

// assignReturned assigns the first run of chunks that have no lane.
func (w *window) assignReturned(l *lane, length int) chunkRun {
	var r chunkRun
	for _, c := range w.pending {
		returned := c.buf == nil && c.lane == nil
		switch {
		case r.to == 0 && returned:
			r = chunkRun{c.n, c.n}
		case r.to == 0:
			continue
		case !returned || c.n != r.to:
			return r
		}
		if r.to-r.from == int64(length) {
			return r
		}
		c.lane = l
		r.to = c.n + 1
	}
	return r
}

// assignNext assigns the next chunks that were never assigned, but only when the window
// has room for a whole run: otherwise each freed place would become a request for a single
// chunk.
func (w *window) assignNext(l *lane, length int) (chunkRun, error) {
	if w.size()-len(w.pending) < length {
		return chunkRun{}, nil
	}
	var r chunkRun
	for ; w.unassigned < w.manifest.Chunks() && w.unassigned < w.next+maxAhead; w.unassigned++ {
		zero, err := w.manifest.IsZero(w.unassigned)
		if err != nil {
			return chunkRun{}, &manifestError{err}
		}
		switch {
		case zero && r.to > 0, r.to > 0 && r.to-r.from == int64(length):
			return r, nil
		case zero:
			continue
		case r.to == 0:
			r.from = w.unassigned
		}
		w.pending = append(w.pending, &pendingChunk{n: w.unassigned, lane: l})
		r.to = w.unassigned + 1
	}
	return r, nil
}

// hedgeDelay is the least gain of time for which a lane steals or hedges a chunk.
const hedgeDelay = 200 * time.Millisecond

// stealOrHedge assigns to l, which has no other work, chunks that l would receive long
// before the lane that has them. Chunks that the slow lane has not begun are stolen from
// it. The one it is receiving is hedged: both lanes receive it, and the first to deliver
// wins. Otherwise it returns when to try again, 0 if there is nothing to steal. The caller
// holds mu.
func (w *window) stealOrHedge(l *lane, length int) (chunkRun, time.Duration) {
	recheck := time.Duration(0)
	for i, c := range w.pending {
		if c.buf != nil || c.lane == nil || c.lane == l || c.hedge != nil {
			continue
		}
		recheck = hedgeDelay / 2
		// The factor 2 keeps lanes of similar rates from stealing from each other.
		if w.timeUntil(c) < 2*l.chunkTime()+hedgeDelay {
			continue
		}
		if c.lane.receiving == c.n {
			c.hedge = l
			return chunkRun{c.n, c.n + 1}, 0
		}
		return w.steal(l, i, length), 0
	}
	return chunkRun{}, recheck
}

// steal reassigns to l up to length consecutive chunks of the lane that has the pending
// chunk with index i.
func (w *window) steal(l *lane, i, length int) chunkRun {
	slow := w.pending[i].lane
	r := chunkRun{w.pending[i].n, w.pending[i].n}
	for _, c := range w.pending[i:] {
		if c.lane != slow || c.hedge != nil || c.n != r.to || r.to-r.from == int64(length) {
			break
		}
		c.lane = l
		r.to++
	}
	return r
}

// timeUntil estimates how long it will take until the lane of c has received c.
func (w *window) timeUntil(c *pendingChunk) time.Duration {
	left := c.lane.timeLeft()
	for _, earlier := range w.pending {
		if earlier.n > c.n {
			break
		}
		if earlier.lane == c.lane && earlier.buf == nil && earlier.n != c.lane.receiving {
			left += c.lane.chunkTime()
		}
	}
	return left
}
