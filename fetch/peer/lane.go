package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	// stallTimeout is the time after which a source that sends nothing, or less than 1 KiB/s, has
	// stalled.
	stallTimeout = 10 * time.Second
	// firstRunLength is the length of a run before the rate is known, and maxRunLength the maximum, in
	// chunks. The cost of a request is small compared to a run, and little is lost when a source
	// fails.
	firstRunLength, maxRunLength = 4, 8
	// targetRunTime is the intended duration of a run.
	targetRunTime = 500 * time.Millisecond
)

var (
	// errSlow ends a lane because a hedge delivered its chunk first.
	errSlow = errors.New("much slower than the other sources")
	// errHedgeLost ends a hedge because the slow lane delivered the chunk first.
	errHedgeLost = errors.New("another source was faster")
)

// rangeOpener opens the bytes [from, to) of an image.
type rangeOpener func(ctx context.Context, from, to int64) (io.ReadCloser, error)

// lane requests runs of chunks from one source, one run at a time.
type lane struct {
	node, disk    string // "" for the upstream
	open          rangeOpener
	window        *window // nil if the lane fetches single chunks
	limiter       *rate.Limiter
	networkBytes  *atomic.Int64  // counts received bytes
	peerActivity  *activityClock // updated by each read; nil for the upstream
	chunkProgress *activityClock // updated by each valid chunk
	delivers      func()         // called after each valid chunk that was still missing; may be nil
	shouldStop    func() bool    // called between runs; nil: the lane stops only when all chunks are received
	quota         int64          // maximum number of chunks of a probe; 0: the lane is not a probe

	delivered int64         // number of chunks that were valid and still missing
	busyTime  time.Duration // total duration of the runs

	// The mutex of the window guards the following fields, except receivedBytes.
	rate            float64   // bytes per second; 0: not known yet
	receiving       int64     // index of the chunk that is being received; -1: none
	receivingLength int64     // its length in bytes
	receivingSince  time.Time // start of the chunk; for the first chunk of a run, start of the request
	receivedBytes   atomic.Int64
	cancel          context.CancelCauseFunc // ends the request; nil: no request is pending
}

// newLane returns a lane for a peer.
func (t *transfer) newLane(s Source) *lane {
	return &lane{
		node: s.Node, disk: s.Disk, window: t.window, limiter: t.limiter, networkBytes: &t.progress.PeerBytes,
		peerActivity: &t.peerActivity, chunkProgress: &t.chunkProgress, delivers: func() { t.progress.Sender.Store(&s.URL) },
		open: func(ctx context.Context, from, to int64) (io.ReadCloser, error) { return t.openRange(ctx, s, from, to) },
	}
}

// newUpstreamLane returns a lane for the upstream.
func (t *transfer) newUpstreamLane() *lane {
	return &lane{open: t.upstream.open, window: t.window, limiter: t.limiter, networkBytes: &t.progress.UpstreamBytes, chunkProgress: &t.chunkProgress}
}

// name returns the name of the source in a healthTable.
func (l *lane) name() string {
	if l.node == "" {
		return upstreamName
	}
	return Source{Address: Address{Node: l.node}, Disk: l.disk}.name()
}

// run fetches runs until all chunks are received. An error is the reason why the source should not be
// used for a while.
func (l *lane) run(ctx context.Context) error {
	l.window.addLane()
	defer l.window.removeLane()
	for {
		if l.shouldStop != nil && l.shouldStop() {
			return errNotNeeded
		}
		r, err := l.window.nextRun(ctx, l)
		if err != nil || r.empty() {
			return err
		}
		start := time.Now()
		err = l.fetchRun(ctx, r)
		l.busyTime += time.Since(start)
		l.window.unassign(l)
		if err != nil && !errors.Is(err, errHedgeLost) {
			return err
		}
	}
}

// fetchRun requests the chunks of r and delivers each chunk when it is received.
func (l *lane) fetchRun(ctx context.Context, r chunkRun) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.setRequest(cancel)
	defer l.setRequest(nil)
	body, err := l.openRange(ctx, cancel, r.from*disk.ChunkSize, min(r.to*disk.ChunkSize, l.window.manifest.Size()))
	if err != nil {
		return err
	}
	defer body.Close()
	from := l.pacedReader(ctx, cancel, body)
	for n := r.from; n < r.to && l.window.startChunk(l, n); n++ {
		if err := l.receiveChunk(from, n); err != nil {
			return causeOf(ctx, err)
		}
	}
	return nil
}

// openRange opens a range of the image. It cancels the request if there is no response within
// stallTimeout.
func (l *lane) openRange(ctx context.Context, cancel context.CancelCauseFunc, from, to int64) (io.ReadCloser, error) {
	timer := time.AfterFunc(stallTimeout, func() { cancel(fmt.Errorf("no response in %v", stallTimeout)) })
	defer timer.Stop()
	body, err := l.open(ctx, from, to)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	return body, nil
}

// pacedReader returns a reader of body that counts bytes, applies the rate limit, and cancels the
// request when it stalls.
func (l *lane) pacedReader(ctx context.Context, cancel context.CancelCauseFunc, body io.Reader) io.Reader {
	return fetch.RateLimitReader(ctx, fetch.StallReader(countingReader{body, l}, stallTimeout, cancel), l.limiter)
}

// causeOf returns the cause of ctx if ctx has ended, because err is then only a consequence of it.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// receiveChunk reads chunk n and delivers it if it is valid.
func (l *lane) receiveChunk(from io.Reader, n int64) error {
	buf := l.window.buffer()
	data := buf[:l.window.manifest.ChunkLength(n)]
	if err := l.readChunk(from, n, data); err != nil {
		l.window.release(buf)
		return err
	}
	l.updateRate()
	l.chunkProgress.touch()
	if l.window.deliver(l, n, buf) {
		l.delivered++
		if l.delivers != nil {
			l.delivers()
		}
	}
	return nil
}

// readChunk fills data with chunk n and verifies it.
func (l *lane) readChunk(from io.Reader, n int64, data []byte) error {
	want, err := l.window.manifest.Hash(n)
	if err != nil {
		return &manifestError{err}
	}
	if _, err := io.ReadFull(from, data); err != nil {
		return unexpectedEOF(err)
	}
	return l.checkChunk(n, data, want)
}

// checkChunk compares the hash of chunk n with the hash in the chunk manifest.
func (l *lane) checkChunk(n int64, data []byte, want disk.ChunkHash) error {
	if !want.Matches(data) {
		return &InvalidDataError{l.node, l.disk, fmt.Errorf("chunk %d does not match the chunk manifest", n)}
	}
	return nil
}

// unexpectedEOF replaces io.EOF by io.ErrUnexpectedEOF: the body must not end within a chunk.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// countingReader counts the bytes that a lane receives.
type countingReader struct {
	io.Reader
	lane *lane
}

func (c countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if n > 0 {
		c.lane.receivedBytes.Add(int64(n))
		c.lane.networkBytes.Add(int64(n))
		if c.lane.peerActivity != nil {
			c.lane.peerActivity.touch()
		}
	}
	return n, err
}

// activityClock is the time of the latest event of a kind. It is safe for concurrent use.
type activityClock struct {
	start  time.Time
	latest atomic.Int64 // nanoseconds after start
}

func (c *activityClock) touch() { c.latest.Store(int64(time.Since(c.start))) }

func (c *activityClock) since() time.Duration {
	return time.Since(c.start) - time.Duration(c.latest.Load())
}

// setRequest records that a request begins, which cancel ends. With nil, it records that the request
// ended.
func (l *lane) setRequest(cancel context.CancelCauseFunc) {
	l.window.mu.Lock()
	defer l.window.mu.Unlock()
	l.cancel, l.receiving, l.receivingLength, l.receivingSince = cancel, -1, disk.ChunkSize, time.Now()
	l.receivedBytes.Store(0)
}

// startReceiving records that the next chunk of the request is n. The time until the response counts
// as time of the first chunk, so that a source with a high latency has a low rate. The caller must
// hold the mutex of the window.
func (l *lane) startReceiving(n, length int64) {
	if l.receiving >= 0 {
		l.receivingSince = time.Now()
	}
	l.receiving, l.receivingLength = n, length
	l.receivedBytes.Store(0)
}

// updateRate updates the rate after a chunk was received. Each chunk has half the weight of the
// following chunk.
func (l *lane) updateRate() {
	l.window.mu.Lock()
	defer l.window.mu.Unlock()
	now := float64(l.receivingLength) / max(time.Since(l.receivingSince).Seconds(), 1e-6)
	if l.rate == 0 {
		l.rate = now
	}
	l.rate = (l.rate + now) / 2
}

// cancelChunk ends the request if it is receiving chunk n. The caller must hold the mutex of the
// window.
func (l *lane) cancelChunk(n int64, cause error) {
	if l.receiving == n && l.cancel != nil {
		l.cancel(cause)
	}
}

// runLength returns the number of chunks to request at once while this number of lanes runs: at most
// half of the lane's share of the window. The caller must hold the mutex of the window.
func (l *lane) runLength(lanes int) int {
	length := firstRunLength
	if l.rate > 0 {
		length = int(min(l.rate*targetRunTime.Seconds()/disk.ChunkSize, maxRunLength))
	}
	if left := l.quota - l.delivered; left > 0 {
		length = min(length, int(left))
	}
	return max(1, min(length, l.window.size()/(2*max(lanes, 1))))
}

// chunkTime estimates the time that the source needs for a chunk. The caller must hold the mutex of
// the window.
func (l *lane) chunkTime() time.Duration {
	if l.rate == 0 {
		return time.Second
	}
	return time.Duration(disk.ChunkSize / l.rate * float64(time.Second))
}

// timeLeft estimates the remaining time of the chunk that is being received. The caller must hold the
// mutex of the window.
func (l *lane) timeLeft() time.Duration {
	if l.cancel == nil {
		return 0
	}
	elapsed, received := time.Since(l.receivingSince), float64(l.receivedBytes.Load())
	missing := max(0, float64(l.receivingLength)-received)
	switch {
	case l.rate > 0 && elapsed < 2*l.chunkTime(): // not overdue: assume the known rate
		return time.Duration(missing / l.rate * float64(time.Second))
	case received < 1: // overdue without a byte: assume the same time again
		return elapsed
	}
	// Overdue: assume the rate of this chunk, but at least the elapsed time.
	return time.Duration(min(float64(elapsed)*max(1, missing/received), float64(time.Hour)))
}
