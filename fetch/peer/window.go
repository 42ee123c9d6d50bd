package peer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const (
	// windowChunks is how many chunks of data may be asked for, or be here and not
	// yet in the part, at once. It and a chunk for each lane are the memory of a pull.
	windowChunks = 22
	// sharedChunks is what all pulls of a Client share, and leastWindow what each has
	// in any case.
	sharedChunks, minWindowChunks = 2 * windowChunks, 6
	// maxAhead bounds how far, in chunks, a pull looks over zeros for data.
	maxAhead = 4096
)

// window is what a pull has asked for and the part has not got yet: chunks of data
// in their order, however they come. Zeros are not in it.
type window struct {
	manifest    *disk.Manifest
	activePulls *atomic.Int32 // that share the memory

	mu         sync.Mutex
	changed    chan struct{}   // closed, and another one made, when something changed
	pending    []*pendingChunk // in order
	next       int64           // the chunk that the part wants
	unassigned int64           // the first chunk that was not looked at
	lanes      int             // that are at work
	free       [][]byte
	buffers    int // buffers that there are

	waited       time.Duration // that the part waited for chunks
	waitingSince time.Time     // since when it waits now; zero: it does not
}

// pendingChunk is a chunk of data that is on its way.
type pendingChunk struct {
	n     int64
	buf   []byte // the chunk itself; nil: it is not here yet
	lane  *lane  // that asked for it; nil: none, or it failed
	hedge *lane  // that asked for it too, for the first one is slow
}

// chunkRun is chunks of data that are asked for at once: from to to, without to.
type chunkRun struct{ from, to int64 }

func newWindow(m *disk.Manifest, next int64, pulls *atomic.Int32) *window {
	return &window{manifest: m, activePulls: pulls, next: next, unassigned: next, changed: make(chan struct{})}
}

// size returns how many chunks the window has room for now.
func (w *window) size() int {
	return min(windowChunks, max(minWindowChunks, sharedChunks/max(1, int(w.activePulls.Load()))))
}

// notify wakes all who wait for a change. The caller holds mu.
func (w *window) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// waitFor returns chunk n of data, which is the next one, as soon as it is here.
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

// skipTo tells that the part went on to chunk n over zeros.
func (w *window) skipTo(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = n
	if n%(maxAhead/4) == 0 {
		w.notify()
	}
}

// totalWait returns how long the part has waited for chunks so far.
func (w *window) totalWait() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingSince.IsZero() {
		return w.waited
	}
	return w.waited + time.Since(w.waitingSince)
}

// currentWait returns how long the part has been waiting for the next chunk.
func (w *window) currentWait() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waitingSince.IsZero() {
		return 0
	}
	return time.Since(w.waitingSince)
}

// buffer returns a buffer to receive into. There are never more of them than
// chunks in the window and lanes.
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

func (w *window) release(buf []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recycle(buf)
}

// recycle takes back a buffer, unless there are more by now than should be: one for each
// chunk in the window and each lane, and that of the part. The caller holds mu.
func (w *window) recycle(buf []byte) {
	if w.buffers > w.size()+w.lanes+1 {
		w.buffers--
		return
	}
	w.free = append(w.free, buf)
}

// startChunk reports whether l, which is about to receive chunk n, still should.
func (w *window) startChunk(l *lane, n int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.find(n)
	if s == nil || s.buf != nil || s.lane != l && s.hedge != l {
		return false
	}
	l.startReceiving(n, w.manifest.ChunkLength(n))
	return true
}

// deliver puts in a chunk with the right bytes. It reports whether it was still
// missing; the buffer is the window's in any case. Who else is receiving it stops.
func (w *window) deliver(l *lane, n int64, buf []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.find(n)
	if s == nil || s.buf != nil {
		w.recycle(buf)
		return false
	}
	if s.hedge == l && s.lane != nil {
		s.lane.cancelChunk(n, errSlow)
	} else if s.hedge != nil {
		s.hedge.cancelChunk(n, errHedgeLost)
	}
	s.buf = buf
	w.notify()
	return true
}

// unassign gives back what l was asked for and did not bring.
func (w *window) unassign(l *lane) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.pending {
		switch {
		case s.hedge == l:
			s.hedge = nil
		case s.lane == l:
			s.lane, s.hedge = s.hedge, nil
		}
	}
	w.notify()
}

func (w *window) find(n int64) *pendingChunk {
	for _, s := range w.pending {
		if s.n == n {
			return s
		}
	}
	return nil
}

// addLane and leave count the lanes that share the window.
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

// nextRun waits for chunks that l should ask for. It returns an empty run when there
// is no more to do for anybody.
func (w *window) nextRun(ctx context.Context, l *lane) (chunkRun, error) {
	for {
		r, again, changed, err := w.assign(l)
		if err != nil || r.from < r.to {
			return r, err
		}
		if changed == nil {
			return chunkRun{}, nil
		}
		var alarm <-chan time.Time
		if again > 0 {
			alarm = time.After(again)
		}
		select {
		case <-changed:
		case <-alarm:
		case <-ctx.Done():
			return chunkRun{}, context.Cause(ctx)
		}
	}
}

// assign gives l chunks to ask for: those that another lane could not get, else
// those that come next, else what a slow lane has not got. Without any, it returns
// what to wait for: nothing when all is here.
func (w *window) assign(l *lane) (r chunkRun, again time.Duration, changed chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	length := l.runLength(w.lanes)
	if r := w.assignReturned(l, length); r.from < r.to {
		return r, 0, nil, nil
	}
	if r, err = w.assignNext(l, length); err != nil || r.from < r.to {
		return r, 0, nil, err
	}
	r, again = w.stealOrHedge(l, length)
	if r.from < r.to || w.unassigned == w.manifest.Chunks() && w.allReceived() {
		return r, 0, nil, nil
	}
	return chunkRun{}, again, w.changed, nil
}

func (w *window) allReceived() bool {
	for _, s := range w.pending {
		if s.buf == nil {
			return false
		}
	}
	return true
}

// assignReturned gives l the first chunks that nobody is asked for any more.
func (w *window) assignReturned(l *lane, length int) chunkRun {
	var r chunkRun
	for _, s := range w.pending {
		idle := s.buf == nil && s.lane == nil
		switch {
		case r.to == 0 && idle:
			r = chunkRun{s.n, s.n}
		case r.to == 0:
			continue
		case !idle || s.n != r.to:
			return r
		}
		if r.to-r.from == int64(length) {
			return r
		}
		s.lane = l
		r.to = s.n + 1
	}
	return r
}

// assignNext gives l the chunks that come next, as soon as the window has room for a
// whole run: single chunks would be single requests.
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

// hedgeDelay is what a lane may be late before another one is asked as well.
const hedgeDelay = 200 * time.Millisecond

// stealOrHedge gives l, which has nothing else to do, chunks that it would have long
// before the lane that has been asked for them. What that lane did not begin is
// taken from it; what it is receiving is raced for. It returns when to look again
// otherwise; the caller holds mu.
func (w *window) stealOrHedge(l *lane, length int) (chunkRun, time.Duration) {
	again := time.Duration(0)
	for i, s := range w.pending {
		if s.buf != nil || s.lane == nil || s.lane == l || s.hedge != nil {
			continue
		}
		again = hedgeDelay / 2
		if w.timeUntil(s) < 2*l.chunkTime()+hedgeDelay {
			continue
		}
		if s.lane.receiving == s.n {
			s.hedge = l
			return chunkRun{s.n, s.n + 1}, 0
		}
		return w.steal(l, i, length), 0
	}
	return chunkRun{}, again
}

// steal gives l up to length chunks of the lane that chunk i belongs to.
func (w *window) steal(l *lane, i, length int) chunkRun {
	from := w.pending[i].lane
	r := chunkRun{w.pending[i].n, w.pending[i].n}
	for _, s := range w.pending[i:] {
		if s.lane != from || s.hedge != nil || s.n != r.to || r.to-r.from == int64(length) {
			break
		}
		s.lane = l
		r.to++
	}
	return r
}

// timeUntil estimates how long the lane of s will need until it has s.
func (w *window) timeUntil(s *pendingChunk) time.Duration {
	left := s.lane.timeLeft()
	for _, before := range w.pending {
		if before.n > s.n {
			break
		}
		if before.lane == s.lane && before.buf == nil && before.n != s.lane.receiving {
			left += s.lane.chunkTime()
		}
	}
	return left
}
