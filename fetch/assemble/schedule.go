package assemble

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	// maxRequests is the number of requests at the same time.
	maxRequests = 8
	// maxBusyTime is the time for which a transfer waits for sources that are only busy.
	maxBusyTime = time.Hour
	// firstLength is the length of a request in bytes before the pace of the source is known, and maxLength the maximum of
	// a source without Limits. The cost of a request is small compared to it, and little is lost when a source fails.
	firstLength, maxLength = 4 * disk.ChunkSize, 8 * disk.ChunkSize
	// requestTime is how long such a request takes.
	requestTime = 500 * time.Millisecond
	// secondAfter is the least time after which the next segment is requested a second time.
	secondAfter = 200 * time.Millisecond
)

// request is one request for some segments in a row.
type request struct {
	source    Source
	health    *record
	segments  []*segment
	second    bool  // another request has begun to receive the segment before
	left      int64 // bytes that are missing of the segments; 0 if second
	delivered int64 // bytes that were right and still missing
	began     time.Time
	cancel    context.CancelCauseFunc
	err       error
}

// scheduler decides which source is asked for which segments. It is for one goroutine.
type scheduler struct {
	*Assembly
	sources  []Source
	readAt   time.Time // when sources was read; zero: it has to be read again
	activity clock     // of the last byte from a source that is not of the Reserve
	busy     clock     // of the last Busy
	reserve  bool      // the sources of the Reserve are used
	sharing  int       // number of sources that share the window
}

// schedule starts requests until ctx ends. It returns an error when the transfer cannot continue.
func (a *Assembly) schedule(ctx context.Context) error {
	s := &scheduler{Assembly: a}
	s.activity.start(time.Now())
	s.busy.start(time.Now().Add(-maxBusyTime)) // as if it were long ago
	for ctx.Err() == nil {
		changed, wait, err := s.step(ctx)
		if err != nil {
			return err
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return nil
}

// step starts the requests that can be started now. The next step is due when changed is closed, and after wait.
func (s *scheduler) step(ctx context.Context) (changed chan struct{}, wait time.Duration, err error) {
	if err := s.judgeEnded(); err != nil {
		return nil, 0, err
	}
	if time.Since(s.readAt) >= time.Second {
		s.sources, s.readAt = s.Sources(), time.Now()
		rand.Shuffle(len(s.sources), func(i, j int) { s.sources[i], s.sources[j] = s.sources[j], s.sources[i] }) // spreads the load of many receivers
	}
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	wait = s.Health.UntilRetry()
	for started := true; started; {
		started = false
		for _, source := range s.leastBusy() {
			again, r := s.nextRequest(source)
			if again > 0 {
				wait = min(wait, again)
			}
			if r != nil {
				s.send(ctx, r)
				started = true
				break
			}
		}
	}
	if s.Patience > 0 && len(q.running) == 0 && q.returned+q.fresh > 0 && min(q.progress.since(), s.busy.since()) >= s.Patience {
		return nil, 0, s.Health.NoSource(s.Patience)
	}
	return q.changed, wait, nil
}

// leastBusy returns the sources that can get another request, those with the fewest requests first. The caller holds the
// mutex of the queue.
func (s *scheduler) leastBusy() []Source {
	if len(s.queue.running) >= maxRequests {
		return nil
	}
	usable := func(available func(*record) bool) (free []Source) {
		for _, source := range s.sources {
			if available(s.Health.of(source.Name)) && s.hasRoom(source) && (!source.Reserve || s.needsReserve()) {
				free = append(free, source)
			}
		}
		return free
	}
	free := usable((*record).available)
	if len(free) == 0 && len(s.queue.running) == 0 {
		free = usable(func(r *record) bool { return r.degraded })
	}
	s.sharing = min(maxRequests, len(s.queue.running)+len(free))
	slices.SortStableFunc(free, func(x, y Source) int {
		if x.Reserve != y.Reserve && y.Reserve {
			return -1
		} else if x.Reserve != y.Reserve {
			return 1
		}
		return s.requestsOf(x) - s.requestsOf(y)
	})
	return free
}

// requestsOf returns the number of the requests to the host of a source.
func (s *scheduler) requestsOf(source Source) (n int) {
	for _, r := range s.queue.running {
		if r.source.Host == source.Host {
			n++
		}
	}
	return n
}

// hasRoom reports whether the host of a source serves another request.
func (s *scheduler) hasRoom(source Source) bool {
	most := 1
	if source.Limits != nil {
		most, _ = source.Limits()
	}
	if known := s.Health.of(source.Name).requests; known > 0 {
		most = min(most, known)
	}
	return s.requestsOf(source) < most
}

// needsReserve reports whether the sources of the reserve are used now. While another source is busy, the image is still
// being distributed, and more sources will be available soon.
func (s *scheduler) needsReserve() bool {
	waiting := s.queue.waitingSince
	switch {
	case min(s.activity.since(), s.busy.since()) < s.ReserveAfter:
		s.reserve = false
	case s.ReserveAfter == 0 || !waiting.IsZero() && time.Since(waiting) >= s.ReserveAfter:
		s.reserve = true
	}
	return s.reserve
}

// nextRequest returns the next request for a source. If there is nothing to request now, it returns the time until there
// may be, 0 for no such time. The caller holds the mutex of the queue.
func (s *scheduler) nextRequest(source Source) (again time.Duration, r *request) {
	r = &request{source: source, health: s.Health.of(source.Name)}
	if r.segments = s.queue.next(s.length(r)); len(r.segments) > 0 {
		s.queue.assign(r)
		return 0, r
	}
	return s.nextSecond(r)
}

// length returns the length of the next request. It is at most half of the share of the source in the window.
func (s *scheduler) length(r *request) int64 {
	if r.source.Limits != nil {
		_, length := r.source.Limits()
		return length
	}
	length := int64(firstLength)
	if r.health.pace > 0 {
		length = min(int64(requestTime/r.health.pace)*disk.ChunkSize, maxLength)
	}
	share := s.queue.window() / int64(2*s.sharing)
	return min(length, share/disk.ChunkSize*disk.ChunkSize)
}

// nextSecond requests the segment for which Run waits from another source, too, if the request that should deliver it
// takes much longer than the other source needs: the first one to deliver wins, and the other one ends. So no source
// can hold up the transfer, and at most one segment is received twice.
func (s *scheduler) nextSecond(r *request) (again time.Duration, _ *request) {
	q := &s.queue
	if q.waitingSince.IsZero() || r.source.Reserve {
		return 0, nil
	}
	first := q.segments[0]
	if first.done || first.by == nil || first.second != nil || first.by.source.Host == r.source.Host {
		return 0, nil
	}
	pace := time.Second
	if r.health.pace > 0 {
		pace = r.health.pace
	}
	if left := secondAfter + 2*pace - time.Since(q.waitingSince); left > 0 {
		return left, nil
	}
	r.second, first.second, r.segments = true, r, []*segment{first}
	q.running = append(q.running, r)
	return 0, r
}

// send starts a request.
func (s *scheduler) send(ctx context.Context, r *request) {
	ctx, r.cancel = context.WithCancelCause(ctx)
	s.requests.Go(func() {
		defer r.cancel(nil)
		r.err = s.receive(ctx, r)
		s.queue.end(r)
	})
}

// receive receives the segments of a request.
func (s *scheduler) receive(ctx context.Context, r *request) error {
	r.began = time.Now()
	last := r.segments[len(r.segments)-1]
	b, err := r.source.Open(ctx, r.segments[0].Offset, last.End())
	if err != nil {
		return causeOf(ctx, err)
	}
	defer b.Close()
	in := io.Reader(b)
	if !r.source.Reserve {
		in = activeReader{b, &s.activity}
	}
	for _, seg := range r.segments {
		buf, err := s.queue.begin(ctx, r, seg)
		if buf == nil || err != nil {
			return err
		}
		data := buf[:seg.Length]
		if _, err = io.ReadFull(in, data); err == io.EOF {
			err = io.ErrUnexpectedEOF // the body must not end within a segment, nor before it
		}
		if err == nil && seg.Hash != nil && !seg.Hash.Matches(data) {
			err = &invalidError{r.source.Invalid(seg.Segment)}
		}
		if err != nil {
			s.queue.drop(seg, buf)
			return causeOf(ctx, err)
		}
		if s.queue.deliver(r, seg, buf) && r.source.Delivered != nil {
			r.source.Delivered(b)
		}
	}
	return nil
}

// activeReader notes when bytes arrive.
type activeReader struct {
	io.Reader
	activity *clock
}

// Read implements io.Reader.
func (r activeReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if n > 0 {
		r.activity.touch()
	}
	return n, err
}

// invalidError means that a source sent wrong bytes.
type invalidError struct{ error }

func (e *invalidError) Unwrap() error { return e.error }

// judgeEnded records the results of the requests that have ended. It returns an error if the transfer must end.
func (s *scheduler) judgeEnded() error {
	s.queue.mu.Lock()
	ended := s.queue.ended
	s.queue.ended = nil
	s.queue.mu.Unlock()
	for _, r := range ended {
		if err := s.judge(r); err != nil {
			return err
		}
	}
	return nil
}

func (s *scheduler) judge(r *request) error {
	switch {
	case r.err == nil:
		if r.delivered > 0 {
			r.health.succeed()
		}
		return nil
	case errors.Is(r.err, errNotNeeded):
		return nil
	}
	s.readAt = time.Time{}
	s.queue.mu.Lock()
	others := s.requestsOf(r.source)
	s.queue.mu.Unlock()
	if others > 0 && r.delivered == 0 && isOverload(r.err) {
		r.health.requests = others // a server that serves only some requests at a time
		return nil
	}
	err := r.err
	if invalid, ok := errors.AsType[*invalidError](err); ok {
		r.health.invalid, err = true, invalid.error
	}
	s.Health.fail(r.health, err, r.delivered)
	if isDropped(err) && r.health.failures < fetch.MaxDrops {
		s.queue.progress.touch() // on a slow connection, one segment may take longer than Patience
	}
	if r.health.busy && s.activity.since() < maxBusyTime { // after that, the other transfers of the source probably hang
		s.busy.touch()
	}
	if s.Failed == nil {
		return nil
	}
	return s.Failed(r.source, err)
}
