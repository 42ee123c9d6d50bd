package peer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const (
	// windowChunks is the maximum size of a window: the number of data chunks that are requested, or
	// received and not yet consumed. A pull needs a buffer for each of these chunks, for each lane,
	// and for the consumer.
	windowChunks = 22
	// sharedChunks is the size that all pulls of a Client share; each pull has at least
	// minWindowChunks.
	sharedChunks, minWindowChunks = 2 * windowChunks, 6
	// maxAhead is the number of chunks, most of them zeros, in which a pull searches ahead for data.
	maxAhead = 4096
)

// window is the work queue of a pull: the data chunks that are requested, or received and not yet
// consumed, in order. Lanes request runs of its chunks and deliver them in any order; one consumer
// removes them in order. It contains neither chunks of zeros nor those of a seed.
type window struct {
	manifest    *disk.Manifest
	local       localChunks   // only the consumer changes it, while it holds mu
	activePulls *atomic.Int32 // of the Client; the pulls share the memory

	mu         sync.Mutex      // also guards the fields of lane that are marked so
	changed    chan struct{}   // closed, and replaced, when anything changed
	pending    []*pendingChunk // in order
	next       int64           // index of the chunk that the consumer needs next
	unassigned int64           // the first chunk that was neither assigned nor skipped
	localLeft  int             // number of chunks of seeds that the consumer has not reached
	lanes      int             // number of running lanes
	free       [][]byte
	buffers    int // number of allocated buffers

	waited       time.Duration // total time that the consumer waited for chunks before waitingSince
	waitingSince time.Time     // zero: the consumer does not wait
}

// pendingChunk is a data chunk in the window.
type pendingChunk struct {
	n     int64
	buf   []byte // nil: not received yet
	lane  *lane  // the lane that must receive the chunk; nil: none, because the lane failed
	hedge *lane  // a second lane that requested the chunk because lane is slow; nil: none
}

// chunkRun is a range of consecutive data chunks for one request: [from, to).
type chunkRun struct{ from, to int64 }

func (r chunkRun) empty() bool { return r.from == r.to }

func newWindow(m *disk.Manifest, local localChunks, next int64, pulls *atomic.Int32) *window {
	w := &window{manifest: m, local: local, activePulls: pulls, next: next, unassigned: next, changed: make(chan struct{})}
	for n := range int64(len(local)) {
		if local.has(n) {
			w.localLeft++
		}
	}
	return w
}

// size returns the current size of the window in chunks. It shrinks while other pulls run.
func (w *window) size() int {
	return min(windowChunks, max(minWindowChunks, sharedChunks/max(1, int(w.activePulls.Load()))))
}

// notify wakes all goroutines that wait for a change. The caller must hold mu.
func (w *window) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// waitFor waits for data chunk n, which must be the next one, and removes it. The caller must return
// the buffer with release.
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

// skipTo records that the consumer skipped zeros and needs chunk n next.
func (w *window) skipTo(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = n
	if n%(maxAhead/4) == 0 { // lanes may be waiting until assignNext may search further ahead
		w.notify()
	}
}

// endLocal records that the consumer took chunk n from a seed, or, if it is missing there, needs it from
// a lane next.
func (w *window) endLocal(n int64, missing bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.localLeft--
	w.next = n + 1
	if missing {
		w.next = n
		w.local[n] = 0
		if n < w.unassigned { // assignNext has skipped it
			w.pending = slices.Insert(w.pending, 0, &pendingChunk{n: n})
		}
	}
	w.notify()
}

// totalWait returns the total time that the consumer has waited for chunks.
func (w *window) totalWait() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingSince.IsZero() {
		return w.waited
	}
	return w.waited + time.Since(w.waitingSince)
}

// currentWait returns the time that the consumer has been waiting for the next chunk.
func (w *window) currentWait() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingSince.IsZero() {
		return 0
	}
	return time.Since(w.waitingSince)
}

// buffer returns a buffer for one chunk. Lanes need buffers only for chunks that are assigned to
// them, so the number of buffers is limited by the window and the lanes.
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

// recycle keeps a buffer for reuse, or frees it if the window has shrunk: the limit is one buffer for
// each chunk in the window, for each lane, and for the consumer. The caller must hold mu.
func (w *window) recycle(buf []byte) {
	if w.buffers > w.size()+w.lanes+1 {
		w.buffers--
		return
	}
	w.free = append(w.free, buf)
}

// startChunk records that l begins to receive chunk n. It returns false if the chunk is no longer
// assigned to l. Then l must end its request.
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

// deliver stores a verified chunk and cancels the other lane that receives it. It reports whether the
// chunk was still missing. buf belongs to the window in any case.
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

// unassign removes the assignment of the chunks that l did not deliver.
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

// addLane and removeLane update the number of running lanes.
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

// nextRun waits until there are chunks for l to request. It returns an empty run when all chunks are
// received.
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

// assign assigns a run of chunks to l: chunks of a failed lane, else the next chunks, else chunks of
// a slow lane. If there are none, the caller must call it again when changed is closed, or after
// recheck if recheck is not 0. If all chunks are received, r is empty and both are zero.
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
	if !r.empty() || w.unassigned == w.manifest.Chunks() && w.localLeft == 0 && w.allReceived() {
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

// assignReturned assigns the first run of chunks without a lane.
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

// assignNext assigns the next chunks that were never assigned, but only if the window has space for a
// whole run. Otherwise each freed chunk would cause a request for a single chunk.
func (w *window) assignNext(l *lane, length int) (chunkRun, error) {
	if w.size()-len(w.pending) < length {
		return chunkRun{}, nil
	}
	var r chunkRun
	for ; w.unassigned < w.manifest.Chunks() && w.unassigned < w.next+maxAhead; w.unassigned++ {
		skip, err := w.manifest.IsZero(w.unassigned)
		if err != nil {
			return chunkRun{}, &manifestError{err}
		}
		skip = skip || w.local.has(w.unassigned)
		switch {
		case skip && r.to > 0, r.to > 0 && r.to-r.from == int64(length):
			return r, nil
		case skip:
			continue
		case r.to == 0:
			r.from = w.unassigned
		}
		w.pending = append(w.pending, &pendingChunk{n: w.unassigned, lane: l})
		r.to = w.unassigned + 1
	}
	return r, nil
}

// hedgeDelay is the minimum time that a lane must save to steal or hedge a chunk.
const hedgeDelay = 200 * time.Millisecond

// stealOrHedge is called for a lane l without other work. It assigns chunks to l that l would receive
// much earlier than the lane to which they are assigned. If the slow lane has not begun to receive
// the chunks, l steals them. The chunk that the slow lane is receiving is hedged: both lanes receive
// it, and the first delivery wins. If there is nothing to steal now, it returns the time until the
// next check, 0 for no check. The caller must hold mu.
func (w *window) stealOrHedge(l *lane, length int) (chunkRun, time.Duration) {
	recheck := time.Duration(0)
	for i, c := range w.pending {
		if c.buf != nil || c.lane == nil || c.lane == l || c.hedge != nil {
			continue
		}
		recheck = hedgeDelay / 2
		// The factor 2 prevents lanes of similar rates from stealing each other's chunks.
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

// steal reassigns to l up to length consecutive chunks. They begin at index i of pending, and were
// assigned to the lane of this chunk.
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

// timeUntil estimates the time until the lane of c has received c.
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
