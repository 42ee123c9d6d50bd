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
	// allWindows is what all pulls of a Client share, and leastWindow what each has
	// in any case.
	allWindows, leastWindow = 2 * windowChunks, 6
	// maxAhead bounds how far, in chunks, a pull looks over zeros for data.
	maxAhead = 4096
)

// window is what a pull has asked for and the part has not got yet: chunks of data
// in their order, however they come. Zeros are not in it.
type window struct {
	manifest *disk.Manifest
	pulls    *atomic.Int32 // that share the memory

	mu      sync.Mutex
	changed chan struct{} // closed, and another one made, when something changed
	pending []*pending    // in order
	next    int64         // the chunk that the part wants
	ahead   int64         // the first chunk that was not looked at
	lanes   int           // that are at work
	free    [][]byte
	made    int // buffers that there are

	waited  time.Duration // that the part waited for chunks
	waiting time.Time     // since when it waits now; zero: it does not
}

// pending is a chunk of data that is on its way.
type pending struct {
	n     int64
	buf   []byte // the chunk itself; nil: it is not here yet
	lane  *lane  // that asked for it; nil: none, or it failed
	rival *lane  // that asked for it too, for the first one is slow
}

// run is chunks of data that are asked for at once: from to to, without to.
type run struct{ from, to int64 }

func newWindow(m *disk.Manifest, next int64, pulls *atomic.Int32) *window {
	return &window{manifest: m, pulls: pulls, next: next, ahead: next, changed: make(chan struct{})}
}

// size returns how many chunks the window has room for now.
func (w *window) size() int {
	return min(windowChunks, max(leastWindow, allWindows/max(1, int(w.pulls.Load()))))
}

// notify wakes all who wait for a change. The caller holds mu.
func (w *window) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// wait returns chunk n of data, which is the next one, as soon as it is here.
func (w *window) wait(ctx context.Context, n int64) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = n
	w.waiting = time.Now()
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
	w.waited += time.Since(w.waiting)
	w.waiting = time.Time{}
	buf := w.pending[0].buf
	w.pending = append(w.pending[:0], w.pending[1:]...)
	w.next = n + 1
	w.notify()
	return buf, nil
}

// pass tells that the part went on to chunk n over zeros.
func (w *window) pass(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = n
	if n%(maxAhead/4) == 0 {
		w.notify()
	}
}

// starved returns how long the part has waited for chunks so far.
func (w *window) starved() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting.IsZero() {
		return w.waited
	}
	return w.waited + time.Since(w.waiting)
}

// waits returns how long the part has been waiting for the next chunk.
func (w *window) waits() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting.IsZero() {
		return 0
	}
	return time.Since(w.waiting)
}

// buffer returns a buffer to receive into. There are never more of them than
// chunks in the window and lanes.
func (w *window) buffer() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.free) == 0 {
		w.made++
		return disk.NewBuffer()
	}
	last := len(w.free) - 1
	buf := w.free[last]
	w.free = w.free[:last]
	return buf
}

func (w *window) release(buf []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keep(buf)
}

// keep takes back a buffer, unless there are more by now than should be: one for each
// chunk in the window and each lane, and that of the part. The caller holds mu.
func (w *window) keep(buf []byte) {
	if w.made > w.size()+w.lanes+1 {
		w.made--
		return
	}
	w.free = append(w.free, buf)
}

// claim reports whether l, which is about to receive chunk n, still should.
func (w *window) claim(l *lane, n int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.find(n)
	if s == nil || s.buf != nil || s.lane != l && s.rival != l {
		return false
	}
	l.receives(n, w.manifest.Length(n))
	return true
}

// deliver puts in a chunk with the right bytes. It reports whether it was still
// missing; the buffer is the window's in any case. Who else is receiving it stops.
func (w *window) deliver(l *lane, n int64, buf []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.find(n)
	if s == nil || s.buf != nil {
		w.keep(buf)
		return false
	}
	if s.rival == l && s.lane != nil {
		s.lane.stop(n, errSlow)
	} else if s.rival != nil {
		s.rival.stop(n, errOvertaken)
	}
	s.buf = buf
	w.notify()
	return true
}

// abandon gives back what l was asked for and did not bring.
func (w *window) abandon(l *lane) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.pending {
		switch {
		case s.rival == l:
			s.rival = nil
		case s.lane == l:
			s.lane, s.rival = s.rival, nil
		}
	}
	w.notify()
}

func (w *window) find(n int64) *pending {
	for _, s := range w.pending {
		if s.n == n {
			return s
		}
	}
	return nil
}

// enter and leave count the lanes that share the window.
func (w *window) enter() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes++
}

func (w *window) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes--
}

// take waits for chunks that l should ask for. It returns an empty run when there
// is no more to do for anybody.
func (w *window) take(ctx context.Context, l *lane) (run, error) {
	for {
		r, again, changed, err := w.assign(l)
		if err != nil || r.from < r.to {
			return r, err
		}
		if changed == nil {
			return run{}, nil
		}
		var alarm <-chan time.Time
		if again > 0 {
			alarm = time.After(again)
		}
		select {
		case <-changed:
		case <-alarm:
		case <-ctx.Done():
			return run{}, context.Cause(ctx)
		}
	}
}

// assign gives l chunks to ask for: those that another lane could not get, else
// those that come next, else what a slow lane has not got. Without any, it returns
// what to wait for: nothing when all is here.
func (w *window) assign(l *lane) (r run, again time.Duration, changed chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	length := l.run(w.lanes)
	if r := w.abandoned(l, length); r.from < r.to {
		return r, 0, nil, nil
	}
	if r, err = w.advance(l, length); err != nil || r.from < r.to {
		return r, 0, nil, err
	}
	r, again = w.overtake(l, length)
	if r.from < r.to || w.ahead == w.manifest.Chunks() && w.complete() {
		return r, 0, nil, nil
	}
	return run{}, again, w.changed, nil
}

func (w *window) complete() bool {
	for _, s := range w.pending {
		if s.buf == nil {
			return false
		}
	}
	return true
}

// abandoned gives l the first chunks that nobody is asked for any more.
func (w *window) abandoned(l *lane, length int) run {
	var r run
	for _, s := range w.pending {
		idle := s.buf == nil && s.lane == nil
		switch {
		case r.to == 0 && idle:
			r = run{s.n, s.n}
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

// advance gives l the chunks that come next, as soon as the window has room for a
// whole run: single chunks would be single requests.
func (w *window) advance(l *lane, length int) (run, error) {
	if w.size()-len(w.pending) < length {
		return run{}, nil
	}
	var r run
	for ; w.ahead < w.manifest.Chunks() && w.ahead < w.next+maxAhead; w.ahead++ {
		zero, err := w.manifest.Zero(w.ahead)
		if err != nil {
			return run{}, &manifestError{err}
		}
		switch {
		case zero && r.to > 0, r.to > 0 && r.to-r.from == int64(length):
			return r, nil
		case zero:
			continue
		case r.to == 0:
			r.from = w.ahead
		}
		w.pending = append(w.pending, &pending{n: w.ahead, lane: l})
		r.to = w.ahead + 1
	}
	return r, nil
}

// patience is what a lane may be late before another one is asked as well.
const patience = 200 * time.Millisecond

// overtake gives l, which has nothing else to do, chunks that it would have long
// before the lane that has been asked for them. What that lane did not begin is
// taken from it; what it is receiving is raced for. It returns when to look again
// otherwise; the caller holds mu.
func (w *window) overtake(l *lane, length int) (run, time.Duration) {
	again := time.Duration(0)
	for i, s := range w.pending {
		if s.buf != nil || s.lane == nil || s.lane == l || s.rival != nil {
			continue
		}
		again = patience / 2
		if w.left(s) < 2*l.chunkTime()+patience {
			continue
		}
		if s.lane.at == s.n {
			s.rival = l
			return run{s.n, s.n + 1}, 0
		}
		return w.takeOver(l, i, length), 0
	}
	return run{}, again
}

// takeOver gives l up to length chunks of the lane that chunk i belongs to.
func (w *window) takeOver(l *lane, i, length int) run {
	from := w.pending[i].lane
	r := run{w.pending[i].n, w.pending[i].n}
	for _, s := range w.pending[i:] {
		if s.lane != from || s.rival != nil || s.n != r.to || r.to-r.from == int64(length) {
			break
		}
		s.lane = l
		r.to++
	}
	return r
}

// left estimates how long the lane of s will need until it has s.
func (w *window) left(s *pending) time.Duration {
	left := s.lane.left()
	for _, before := range w.pending {
		if before.n > s.n {
			break
		}
		if before.lane == s.lane && before.buf == nil && before.n != s.lane.at {
			left += s.lane.chunkTime()
		}
	}
	return left
}
