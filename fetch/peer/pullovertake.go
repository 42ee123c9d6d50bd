package peer

import "time"

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
