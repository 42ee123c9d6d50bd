package peer

import (
	"context"
	"time"
)

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
