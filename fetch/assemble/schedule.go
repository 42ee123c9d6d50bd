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
	// maxBusyTime is the time for which a transfer waits for providers that are only busy.
	maxBusyTime = time.Hour
	// firstLength is the length of a request in bytes before the pace of the provider is known, and maxLength the maximum for
	// a provider without Limits. At these lengths, a request costs little overhead, and a failing provider loses little.
	firstLength, maxLength = 4 * disk.ChunkSize, 8 * disk.ChunkSize
	// requestTime is the intended duration of a request to a provider without Limits.
	requestTime = 500 * time.Millisecond
	// secondAfter is the least time after which the segment for which Run waits is requested a second time.
	secondAfter = 200 * time.Millisecond
)

// request is one request for some segments in a row.
type request struct {
	candidate Candidate
	health    *record
	segments  []*segment
	second    bool  // it is the second request for its only segment
	left      int64 // bytes that are missing of the segments; 0 if second
	delivered int64 // bytes that were right and still missing
	began     time.Time
	waits     bool // it waits for room in the window
	others    int  // requests to the same host that ran when this request ended
	cancel    context.CancelCauseFunc
	err       error
}

// scheduler decides which provider is asked for which segments. It is for one goroutine.
type scheduler struct {
	*Assembly
	candidates []Candidate
	readAt     time.Time // when candidates was read; zero: it has to be read again
	activity   clock     // of the last byte from a provider that is not of the Reserve
	busy       clock     // of the last Busy
	reserve    bool      // providers of the Reserve are used now
	sharing    int       // number of providers that share the window
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

// step starts the requests that can be started now. The next step is due when changed is closed, at the latest after wait.
func (s *scheduler) step(ctx context.Context) (changed chan struct{}, wait time.Duration, err error) {
	if err := s.judgeEnded(); err != nil {
		return nil, 0, err
	}
	if time.Since(s.readAt) >= time.Second {
		s.candidates, s.readAt = s.Candidates(), time.Now()
		rand.Shuffle(len(s.candidates), func(i, j int) { s.candidates[i], s.candidates[j] = s.candidates[j], s.candidates[i] }) // spreads the load of many receivers
	}
	q := &s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.ended) > 0 { // requests have ended since judgeEnded: their providers may have failed
		return q.changed, 0, nil
	}
	wait = s.Health.UntilRetry()
	for started := true; started; {
		started = false
		for _, candidate := range s.leastBusy() {
			again, r := s.nextRequest(candidate)
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
	q.yield()
	if s.Patience > 0 && len(q.running) == 0 && !q.waitingSince.IsZero() && min(q.progress.since(), s.busy.since()) >= s.Patience {
		return nil, 0, s.Health.NoProvider(s.Patience)
	}
	return q.changed, wait, nil
}

// leastBusy returns the providers that can get another request. Hosts with the fewest requests come first, and the Reserve
// comes last. The caller holds the mutex of the queue.
func (s *scheduler) leastBusy() []Candidate {
	if len(s.queue.running) >= maxRequests {
		return nil
	}
	usable := func(available func(*record) bool) (free []Candidate) {
		for _, candidate := range s.candidates {
			if available(s.Health.of(candidate.Name)) && s.hasRoom(candidate) && (!candidate.Reserve || s.needsReserve()) {
				free = append(free, candidate)
			}
		}
		return free
	}
	free := usable((*record).available)
	if len(free) == 0 && len(s.queue.running) == 0 {
		free = usable(func(r *record) bool { return r.degraded })
	}
	s.sharing = min(maxRequests, len(s.queue.running)+len(free))
	slices.SortStableFunc(free, func(x, y Candidate) int {
		if x.Reserve != y.Reserve && y.Reserve {
			return -1
		} else if x.Reserve != y.Reserve {
			return 1
		}
		return s.queue.requestsOf(x.Host) - s.queue.requestsOf(y.Host)
	})
	return free
}

// requestsOf returns the number of the requests to a host. The caller holds mu.
func (q *queue) requestsOf(host string) (n int) {
	for _, r := range q.running {
		if r.candidate.Host == host {
			n++
		}
	}
	return n
}

// hasRoom reports whether the host of a provider serves another request.
func (s *scheduler) hasRoom(candidate Candidate) bool {
	most := 1
	if candidate.Limits != nil {
		most, _ = candidate.Limits()
	}
	if known := s.Health.of(candidate.Name).requests; known > 0 {
		most = min(most, known)
	}
	return s.queue.requestsOf(candidate.Host) < most
}

// needsReserve reports whether the providers of the reserve are used now. While another provider is busy, the image is still
// being distributed, and more providers will be available soon.
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

// nextRequest returns the next request for a provider. If there is nothing to request now, it returns the time until there
// may be something. 0 means that no time is known. The caller holds the mutex of the queue.
func (s *scheduler) nextRequest(candidate Candidate) (again time.Duration, r *request) {
	r = &request{candidate: candidate, health: s.Health.of(candidate.Name)}
	if r.segments = s.queue.next(s.length(r)); len(r.segments) > 0 {
		s.queue.assign(r)
		return 0, r
	}
	return s.nextSecond(r)
}

// length returns the length of the next request. Without Limits, it is at most half of the provider's share of the window.
func (s *scheduler) length(r *request) int64 {
	if r.candidate.Limits != nil {
		_, length := r.candidate.Limits()
		return length
	}
	length := int64(firstLength)
	if r.health.pace > 0 {
		length = min(int64(requestTime/r.health.pace)*disk.ChunkSize, maxLength)
	}
	share := s.queue.window() / int64(2*s.sharing)
	return min(length, share/disk.ChunkSize*disk.ChunkSize)
}

// nextSecond requests, from a second provider, the segment for which Run waits, if the first request takes much longer than
// the second provider needs. The request that delivers first wins, and the other request ends. So no provider can hold up
// the transfer, and at most one segment is received twice.
func (s *scheduler) nextSecond(r *request) (again time.Duration, _ *request) {
	q := &s.queue
	if q.waitingSince.IsZero() || r.candidate.Reserve {
		return 0, nil
	}
	first := q.segments[0]
	if first.done || first.by == nil || first.second != nil || first.by.candidate.Host == r.candidate.Host {
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
	b, err := r.candidate.Open(ctx, r.segments[0].Offset, last.End())
	if err != nil {
		return causeOf(ctx, err)
	}
	defer b.Close()
	in := io.Reader(b)
	if !r.candidate.Reserve {
		in = activeReader{b, &s.activity}
	}
	for _, seg := range r.segments {
		buf, err := s.queue.begin(ctx, r, seg)
		if buf == nil || err != nil {
			return err
		}
		data := buf[:seg.Length]
		if _, err = io.ReadFull(in, data); err == io.EOF {
			err = io.ErrUnexpectedEOF // the body must not end before the end of the segment
		}
		if err == nil && seg.Hash != nil && !seg.Hash.Matches(data) {
			err = &invalidError{r.candidate.Invalid(seg.Segment)}
		}
		if err != nil {
			s.queue.drop(seg, buf)
			return causeOf(ctx, err)
		}
		if s.queue.deliver(r, seg, buf) && r.candidate.Delivered != nil {
			r.candidate.Delivered(b)
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

// invalidError means that a provider sent wrong bytes.
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
	if r.others > 0 && r.delivered == 0 && isOverload(r.err) {
		r.health.requests = r.others // a server that serves only some requests at a time
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
	if r.health.busy && s.activity.since() < maxBusyTime { // after maxBusyTime, the transfers that keep the provider busy probably hang
		s.busy.touch()
	}
	if s.Failed == nil {
		return nil
	}
	return s.Failed(r.candidate, err)
}
