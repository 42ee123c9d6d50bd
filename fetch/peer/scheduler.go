package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	// maxLanes is how many sources are asked at once.
	maxLanes = 8
	// giveUpAfter is how long a transfer goes on without a source.
	giveUpAfter = 30 * time.Second
	// maxDrops is how often in a row the connection to a source may break before that
	// counts as having none.
	maxDrops = 3
	// maxBusyTime is how long peers are believed that they are busy with others, when
	// nothing comes of any.
	maxBusyTime = time.Hour
)

// upstreamName is what the roster calls the origin: no node can be called so.
const upstreamName = "the origin"

// laneEnd is the end of a lane.
type laneEnd struct {
	lane *lane
	err  error
}

// supervise keeps as many lanes at work as there are sources for, until ctx ends. It
// fails when there is no use in going on.
func (x *transfer) supervise(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		x.startLanes(ctx, &work)
		x.considerUpstream(ctx, &work)
		if len(x.lanes) == 0 && !x.allRequested && x.shouldGiveUp() {
			return x.health.noSourceError()
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-x.laneEnds:
			if err := x.laneEnded(e); err != nil {
				return err
			}
		case <-time.After(x.health.untilNextRetry()):
		}
	}
}

// shouldGiveUp reports whether nothing was of use for too long, and nobody asked to come back.
func (x *transfer) shouldGiveUp() bool {
	return min(x.chunkProgress.since(), x.peerBusy.since()) >= giveUpAfter
}

// startLanes starts a lane for each source that may be asked and is not, one for a node.
func (x *transfer) startLanes(ctx context.Context, work *sync.WaitGroup) {
	if x.allRequested {
		return
	}
	sources := x.shuffledSources()
	started := false
	for _, s := range sources {
		if x.health.of(s.name()).available() {
			started = x.startLane(ctx, work, s) || started
		}
	}
	if started || len(x.lanes) > 0 {
		return
	}
	for _, s := range sources { // better a poor one than none
		if x.health.of(s.name()).degraded {
			x.startLane(ctx, work, s)
		}
	}
}

// shuffledSources returns the sources in an order of chance, so that receivers spread.
func (x *transfer) shuffledSources() []Source {
	sources := slices.Clone(x.Sources())
	rand.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
	return sources
}

// startLane starts a lane for s, unless the node of s is asked already or sends chunks
// of something else.
func (x *transfer) startLane(ctx context.Context, work *sync.WaitGroup, s Source) bool {
	if len(x.lanes) >= maxLanes || !s.ManifestDigest.IsZero() && s.ManifestDigest != x.manifestDigest {
		return false
	}
	for _, l := range x.lanes {
		if l.node == s.Node {
			return false
		}
	}
	x.launchLane(ctx, work, x.newLane(s))
	return true
}

func (x *transfer) launchLane(ctx context.Context, work *sync.WaitGroup, l *lane) {
	x.lanes[l.name()] = l
	work.Go(func() { x.laneEnds <- laneEnd{l, l.run(ctx)} })
}

// laneEnded notes how a lane ended. An error of its own is one of this side.
func (x *transfer) laneEnded(e laneEnd) error {
	delete(x.lanes, e.lane.name())
	switch {
	case e.err == nil:
		x.allRequested = true
		return nil
	case errors.Is(e.err, errNotNeeded):
		return nil
	}
	if ours, ok := errors.AsType[*manifestError](e.err); ok {
		return ours.err
	}
	if x.Final != nil && x.Final(e.err) {
		return e.err
	}
	s := x.health.of(e.lane.name())
	s.recordFailure(e.err, e.lane.delivered, cmp.Or(x.MaxBackoff, defaultMaxBackoff))
	if isConnectionDrop(e.err) && s.failures <= maxDrops {
		x.chunkProgress.touch() // the chunk that it broke in may have taken longer than hopeless
	}
	if s.busy && x.peerActivity.since() < maxBusyTime { // the sends that it is busy with may hang
		x.peerBusy.touch()
	}
	if isInvalidData(e.err) && x.Warn != nil {
		x.Warn(e.err)
	}
	return nil
}

const (
	// peerTimeout is how long peers may bring nothing before the origin is asked, and how
	// long they are watched before it is compared with them.
	peerTimeout = 10 * time.Second
	// probeChunks is what the origin is compared by.
	probeChunks = 8
	// firstProbeInterval is the time until it is compared again; it doubles.
	firstProbeInterval = time.Minute
)

// errNotNeeded ends the lane of an origin that is not needed.
var errNotNeeded = errors.New("it is not needed")

// upstreamFallback is the origin in the eyes of a transfer: the nodes of a cluster should read
// it once between them, but no transfer should be slower than it alone would be.
type upstreamFallback struct {
	open          rangeOpener   // nil: there is none
	samples       []sample      // one a second, of the last ones
	firstByte     time.Time     // when the first byte came of a peer
	nextProbe     time.Time     // not before is it compared again
	probeInterval time.Duration // after the next comparison
}

// sample is how far the transfer was at a time.
type sample struct {
	at     time.Time
	bytes  int64 // of peers
	waited time.Duration
}

// considerUpstream starts a lane for the origin if the peers are not enough: if none brings
// anything, until one does; or if the part waits for them most of the time, and the
// origin turns out to be faster than all of them. As long as a peer is busy with others
// the image is spreading, and soon there are more to ask.
func (x *transfer) considerUpstream(ctx context.Context, work *sync.WaitGroup) {
	if x.upstream.open == nil || x.allRequested || x.lanes[upstreamName] != nil || !x.health.of(upstreamName).available() {
		return
	}
	o := &x.upstream
	last := x.takeSample()
	o.record(last)
	l := x.newUpstreamLane()
	switch {
	case x.peersIdle() >= peerTimeout && x.window.currentWait() >= peerTimeout:
		l.shouldStop = func() bool { return x.peersIdle() < time.Second }
	case x.peerBusy.since() >= peerTimeout && o.shouldProbe(last, x.Limit):
		o.probeInterval = max(2*o.probeInterval, firstProbeInterval)
		o.nextProbe = last.at.Add(o.probeInterval)
		peers := o.peerRate(last)
		l.quota = probeChunks
		l.shouldStop = func() bool { return l.delivered >= probeChunks && l.averageRate() <= peers }
	default:
		return
	}
	x.launchLane(ctx, work, l)
}

// peersIdle returns how long no peer brought anything, or asked to come back.
func (x *transfer) peersIdle() time.Duration { return min(x.peerActivity.since(), x.peerBusy.since()) }

func (x *transfer) takeSample() sample {
	return sample{at: time.Now(), bytes: x.progress.PeerBytes.Load(), waited: x.window.totalWait()}
}

// record keeps the samples of the last ten seconds.
func (o *upstreamFallback) record(s sample) {
	if o.firstByte.IsZero() && s.bytes > 0 {
		o.firstByte = s.at
	}
	if n := len(o.samples); n > 0 && s.at.Sub(o.samples[n-1].at) < time.Second/2 {
		return
	}
	o.samples = append(o.samples, s)
	for len(o.samples) > 1 && s.at.Sub(o.samples[1].at) >= peerTimeout {
		o.samples = append(o.samples[:0], o.samples[1:]...)
	}
}

// shouldProbe reports whether the origin should be compared with the peers: they are what
// the part waits for, and not the limit.
func (o *upstreamFallback) shouldProbe(now sample, limit int64) bool {
	if o.firstByte.IsZero() || now.at.Sub(o.firstByte) < peerTimeout || now.at.Before(o.nextProbe) {
		return false
	}
	if limit > 0 && o.peerRate(now) >= 0.8*float64(limit) {
		return false
	}
	first := o.samples[0]
	return now.waited-first.waited > now.at.Sub(first.at)/2
}

// peerRate returns the bytes per second of all peers together.
func (o *upstreamFallback) peerRate(now sample) float64 {
	first := o.samples[0]
	return float64(now.bytes-first.bytes) / max(now.at.Sub(first.at).Seconds(), 1)
}

// averageRate returns the bytes per second of l while it was asking.
func (l *lane) averageRate() float64 {
	return float64(l.delivered*disk.ChunkSize) / max(l.busyTime.Seconds(), 1e-6)
}

const (
	firstBackoff      = 5 * time.Second
	defaultMaxBackoff = 5 * time.Minute
)

// healthTable is what a Pull has learned of its sources, by their names.
type healthTable map[string]*sourceHealth

// sourceHealth is what is known of one source.
type sourceHealth struct {
	err      error     // why it was set aside last; nil: it never was
	retryAt  time.Time // it is set aside until then
	degraded bool      // it does send: slowly, or until the connection breaks
	busy     bool      // it asked to come back
	failures int       // in a row that failed
}

// name identifies a source to the roster and to people.
func (s Source) name() string { return s.Node + "/" + s.Disk }

func (r *healthTable) of(name string) *sourceHealth {
	if *r == nil {
		*r = healthTable{}
	}
	if (*r)[name] == nil {
		(*r)[name] = new(sourceHealth)
	}
	return (*r)[name]
}

// available reports whether the source may be asked.
func (s *sourceHealth) available() bool { return !time.Now().Before(s.retryAt) }

// recordFailure sets a source aside that brought so many chunks before: for longer each time,
// up to most, unless the connection just broke of one that did well.
func (s *sourceHealth) recordFailure(err error, brought int64, most time.Duration) {
	if busy, ok := errors.AsType[*busyError](err); ok {
		*s = sourceHealth{err: err, busy: true, retryAt: time.Now().Add(busy.retryAfter), failures: s.failures}
		return
	}
	broke, well := isConnectionDrop(err), brought >= firstRunLength
	s.err, s.busy, s.degraded = err, false, errors.Is(err, errSlow) || broke && brought > 0
	if well && !isInvalidData(err) && !errors.Is(err, errSlow) {
		s.failures = 0
	}
	wait := min(firstBackoff<<min(s.failures, 8), most)
	if s.failures++; broke && well {
		wait = 0
	}
	s.retryAt = time.Now().Add(wait)
}

func isInvalidData(err error) bool {
	_, ok := errors.AsType[*InvalidDataError](err)
	return ok
}

func isConnectionDrop(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// untilNextRetry returns how long to wait until something may have become usable.
func (r healthTable) untilNextRetry() time.Duration {
	wait := time.Second
	for _, s := range r {
		if left := time.Until(s.retryAt); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}

// noSourceError is the error when no source was of use for too long.
func (r healthTable) noSourceError() error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if s := r[name]; s.err != nil {
			lines = append(lines, fmt.Sprintf("%s: %v", name, s.err))
		}
	}
	why := cmp.Or(strings.Join(lines, "; "), "no other node has a ready copy that can be asked")
	return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no source for %v: %s", giveUpAfter, why)}
}
