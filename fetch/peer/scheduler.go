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
	// maxLanes is the number of peers from which a transfer requests chunks at the same time.
	maxLanes = 8
	// giveUpAfter is the time without a usable source after which a transfer fails.
	giveUpAfter = 30 * time.Second
	// maxDrops is the number of consecutive dropped connections of a source that still count as
	// progress.
	maxDrops = 3
	// maxBusyTime is the time for which a transfer waits for peers that only send 429.
	maxBusyTime = time.Hour
)

// laneEnd is the result of a lane.
type laneEnd struct {
	lane *lane
	err  error
}

// supervise runs a lane for each usable source until ctx ends. It returns an error when the transfer
// cannot continue.
func (t *transfer) supervise(ctx context.Context) error {
	var lanes sync.WaitGroup
	defer lanes.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		t.startLanes(ctx, &lanes)
		t.considerUpstream(ctx, &lanes)
		if len(t.lanes) == 0 && !t.allRequested && t.shouldGiveUp() {
			return t.pull.health.noSourceError()
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-t.laneEnds:
			if err := t.laneEnded(e); err != nil {
				return err
			}
		case <-time.After(t.pull.health.untilNextRetry()):
		}
	}
}

// shouldGiveUp reports whether no chunk arrived and no peer was busy for giveUpAfter.
func (t *transfer) shouldGiveUp() bool {
	return min(t.chunkProgress.since(), t.peerBusy.since()) >= giveUpAfter
}

// startLanes starts a lane for each available source without a lane, at most one per node. If no lane
// runs and no other source is available, it uses degraded sources.
func (t *transfer) startLanes(ctx context.Context, lanes *sync.WaitGroup) {
	if t.allRequested {
		return
	}
	sources := t.shuffledSources()
	started := false
	for _, s := range sources {
		if t.pull.health.of(s.name()).available() {
			started = t.startLane(ctx, lanes, s) || started
		}
	}
	if started || len(t.lanes) > 0 {
		return
	}
	for _, s := range sources {
		if t.pull.health.of(s.name()).degraded {
			t.startLane(ctx, lanes, s)
		}
	}
}

// shuffledSources returns the sources in random order, so that many receivers distribute their load.
func (t *transfer) shuffledSources() []Source {
	sources := slices.Clone(t.pull.Sources())
	rand.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
	return sources
}

// startLane starts a lane for s and reports true. It starts none and reports false if maxLanes lanes run, if
// a lane for the node of s runs, or if s publishes another chunk manifest or size than this transfer uses.
// A source without a digest of its chunk manifest is accepted.
func (t *transfer) startLane(ctx context.Context, lanes *sync.WaitGroup, s Source) bool {
	if len(t.lanes) >= maxLanes || !s.ManifestDigest.IsZero() && s.contents() != t.pull.received {
		return false
	}
	for _, l := range t.lanes {
		if l.node == s.Node {
			return false
		}
	}
	t.launchLane(ctx, lanes, t.newLane(s))
	return true
}

func (t *transfer) launchLane(ctx context.Context, lanes *sync.WaitGroup, l *lane) {
	t.lanes[l.name()] = l
	lanes.Go(func() { t.laneEnds <- laneEnd{l, l.run(ctx)} })
}

// laneEnded records the result of a lane. It returns an error if the transfer must end.
func (t *transfer) laneEnded(e laneEnd) error {
	delete(t.lanes, e.lane.name())
	switch {
	case e.err == nil:
		t.allRequested = true
		return nil
	case errors.Is(e.err, errNotNeeded):
		return nil
	}
	if local, ok := errors.AsType[*manifestError](e.err); ok {
		return local.err
	}
	if t.pull.Final != nil && t.pull.Final(e.err) {
		return e.err
	}
	h := t.pull.health.of(e.lane.name())
	h.invalid = h.invalid || isInvalidData(e.err)
	h.recordFailure(e.err, e.lane.delivered, cmp.Or(t.pull.MaxBackoff, defaultMaxBackoff))
	if isConnectionDrop(e.err) && h.failures <= maxDrops {
		t.chunkProgress.touch() // on a slow connection, one chunk may take longer than giveUpAfter
	}
	if h.busy && t.peerActivity.since() < maxBusyTime { // after that, the sends of the peer probably hang
		t.peerBusy.touch()
	}
	if isInvalidData(e.err) && t.pull.Warn != nil {
		t.pull.Warn(e.err)
	}
	return nil
}

const (
	// peerTimeout is the time without a byte from a peer after which the upstream is read. It is also
	// the period over which the rate of the peers is measured.
	peerTimeout = 10 * time.Second
	// probeChunks is the number of chunks that a probe of the upstream reads.
	probeChunks = 8
	// firstProbeInterval is the interval between the first and the second probe; it doubles each time.
	firstProbeInterval = time.Minute
)

// upstreamName is the name of the upstream in errors and in the healthTable. It has no slash, unlike
// the name of a peer.
const upstreamName = "upstream"

// errNotNeeded ends the upstream lane because the peers are fast enough.
var errNotNeeded = errors.New("not needed")

// upstreamFallback decides whether a transfer also reads the upstream. All nodes of a cluster
// together should read each byte from the upstream only once, but no transfer should be slower than
// from the upstream alone.
type upstreamFallback struct {
	open          rangeOpener   // nil: there is no upstream
	samples       []sample      // samples of the last peerTimeout, at least half a second apart
	firstByte     time.Time     // time of the first byte from a peer
	nextProbe     time.Time     // no probe starts before this time
	probeInterval time.Duration // interval after the last probe
}

// sample is the progress of a transfer at one point in time.
type sample struct {
	at     time.Time
	bytes  int64         // from peers
	waited time.Duration // see window.totalWait
}

// considerUpstream starts a lane for the upstream if the peers are too slow. There are two cases. If
// no peer sends anything, the lane ends when a peer sends. If the partial file waits for the peers
// most of the time, the lane ends after a probe, unless the upstream is faster than all peers
// together. While a peer is busy, the image is still being distributed in the cluster, and more
// sources will be available soon, so the upstream is not read.
func (t *transfer) considerUpstream(ctx context.Context, lanes *sync.WaitGroup) {
	if t.upstream.open == nil || t.allRequested || t.lanes[upstreamName] != nil || !t.pull.health.of(upstreamName).available() {
		return
	}
	u := &t.upstream
	now := t.takeSample()
	u.record(now)
	l := t.newUpstreamLane()
	switch {
	case t.peersIdle() >= peerTimeout && t.window.currentWait() >= peerTimeout:
		l.shouldStop = func() bool { return t.peersIdle() < time.Second }
	case t.peerBusy.since() >= peerTimeout && u.shouldProbe(now, t.pull.Limit):
		u.probeInterval = max(2*u.probeInterval, firstProbeInterval)
		u.nextProbe = now.at.Add(u.probeInterval)
		peerRate := u.peerRate(now)
		l.quota = probeChunks
		l.shouldStop = func() bool { return l.delivered >= probeChunks && l.averageRate() <= peerRate }
	default:
		return
	}
	t.launchLane(ctx, lanes, l)
}

// peersIdle returns the time since a peer last sent a byte or a 429.
func (t *transfer) peersIdle() time.Duration { return min(t.peerActivity.since(), t.peerBusy.since()) }

func (t *transfer) takeSample() sample {
	return sample{at: time.Now(), bytes: t.progress.PeerBytes.Load(), waited: t.window.totalWait()}
}

// record adds a sample and removes those that are older than peerTimeout, except one.
func (u *upstreamFallback) record(s sample) {
	if u.firstByte.IsZero() && s.bytes > 0 {
		u.firstByte = s.at
	}
	if n := len(u.samples); n > 0 && s.at.Sub(u.samples[n-1].at) < time.Second/2 {
		return
	}
	u.samples = append(u.samples, s)
	for len(u.samples) > 1 && s.at.Sub(u.samples[1].at) >= peerTimeout {
		u.samples = append(u.samples[:0], u.samples[1:]...)
	}
}

// shouldProbe reports whether the upstream may be faster than the peers: the partial file waited most
// of the time, so neither the disk nor the limit was the bottleneck.
func (u *upstreamFallback) shouldProbe(now sample, limit int64) bool {
	if u.firstByte.IsZero() || now.at.Sub(u.firstByte) < peerTimeout || now.at.Before(u.nextProbe) {
		return false
	}
	if limit > 0 && u.peerRate(now) >= 0.8*float64(limit) {
		return false
	}
	first := u.samples[0]
	return now.waited-first.waited > now.at.Sub(first.at)/2
}

// peerRate returns the bytes per second of all peers together, over the samples.
func (u *upstreamFallback) peerRate(now sample) float64 {
	first := u.samples[0]
	return float64(now.bytes-first.bytes) / max(now.at.Sub(first.at).Seconds(), 1)
}

// averageRate returns the bytes per second of l during its requests.
func (l *lane) averageRate() float64 {
	return float64(l.delivered*disk.ChunkSize) / max(l.busyTime.Seconds(), 1e-6)
}

const (
	firstBackoff      = 5 * time.Second
	defaultMaxBackoff = 5 * time.Minute
)

// healthTable contains the health of the sources of a Pull, by name.
type healthTable map[string]*sourceHealth

// sourceHealth is the health of one source.
type sourceHealth struct {
	err      error     // the last failure; nil: none
	retryAt  time.Time // the source is not used before this time
	degraded bool      // the source sends, but slowly, or only until the connection drops
	busy     bool      // the last response was a 429
	failures int       // number of consecutive failures
	invalid  bool      // the source has sent wrong bytes
}

// name identifies a source in a healthTable and in errors.
func (s Source) name() string { return s.Node + "/" + s.Disk }

func (h *healthTable) of(name string) *sourceHealth {
	if *h == nil {
		*h = healthTable{}
	}
	if (*h)[name] == nil {
		(*h)[name] = new(sourceHealth)
	}
	return (*h)[name]
}

// available reports whether the source may be used now.
func (h *sourceHealth) available() bool { return !time.Now().Before(h.retryAt) }

// recordFailure sets the backoff of a source that delivered the given number of chunks before it
// failed. The backoff doubles with each consecutive failure up to maxBackoff. If the connection
// dropped after the source had delivered a whole run, there is no backoff, because the source
// probably works.
func (h *sourceHealth) recordFailure(err error, delivered int64, maxBackoff time.Duration) {
	if busy, ok := errors.AsType[*busyError](err); ok {
		*h = sourceHealth{err: err, busy: true, retryAt: time.Now().Add(busy.retryAfter), failures: h.failures, invalid: h.invalid}
		return
	}
	slow, dropped := errors.Is(err, errSlow), isConnectionDrop(err)
	useful := delivered >= firstRunLength
	h.err, h.busy, h.degraded = err, false, slow || dropped && delivered > 0
	if useful && !isInvalidData(err) && !slow {
		h.failures = 0
	}
	backoff := min(firstBackoff<<min(h.failures, 8), maxBackoff)
	if h.failures++; dropped && useful {
		backoff = 0
	}
	h.retryAt = time.Now().Add(backoff)
}

func isInvalidData(err error) bool {
	_, ok := errors.AsType[*InvalidDataError](err)
	return ok
}

func isConnectionDrop(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// untilNextRetry returns the time until the next source becomes available, but at most one second,
// because new sources may appear at any time.
func (h healthTable) untilNextRetry() time.Duration {
	wait := time.Second
	for _, s := range h {
		if left := time.Until(s.retryAt); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}

// noSourceError returns the error of a transfer that gives up. It contains the last failure of each
// source.
func (h healthTable) noSourceError() error {
	var failures []string
	for _, name := range slices.Sorted(maps.Keys(h)) {
		if s := h[name]; s.err != nil {
			failures = append(failures, fmt.Sprintf("%s: %v", name, s.err))
		}
	}
	reason := cmp.Or(strings.Join(failures, "; "), "no other node has a ready copy")
	return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no source for %v: %s", giveUpAfter, reason)}
}
