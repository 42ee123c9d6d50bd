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
	// stallTimeout is how long a source may send nothing, or less than 1 KiB/s.
	stallTimeout = 10 * time.Second
	// firstRunLength and longestRun are how many chunks are asked for at once: enough that
	// the request costs nothing, few enough that a source that dies takes little
	// with it.
	firstRunLength, maxRunLength = 4, 8
	// targetRunTime is what a run should take.
	targetRunTime = 500 * time.Millisecond
)

var (
	// errSlow ends a lane that another one was faster than by far.
	errSlow = errors.New("slower than the others by far")
	// errHedgeLost ends the receiving of a chunk that another lane brought first.
	errHedgeLost = errors.New("another source was faster")
)

// rangeOpener opens a part of an image somewhere: the bytes from from to to, without to.
type rangeOpener func(ctx context.Context, from, to int64) (io.ReadCloser, error)

// lane asks one source for one run after another.
type lane struct {
	node, disk    string // "" of the origin
	open          rangeOpener
	window        *window
	limiter       *rate.Limiter
	networkBytes  *atomic.Int64  // counts what comes over the network
	peerActivity  *activityClock // touched by each byte; nil: nobody wants to know
	chunkProgress *activityClock // touched by each right chunk
	shouldStop    func() bool    // between runs: whether to end; nil: never
	quota         int64          // chunks for which small runs are taken, so as not to exceed it

	delivered int64         // chunks that were right and wanted
	busyTime  time.Duration // that was spent to get them

	// What follows is guarded by the window, but for got.
	rate            float64   // bytes per second; 0: not known yet
	receiving       int64     // the chunk that is being received; -1: none
	receivingLength int64     // its bytes
	receivingSince  time.Time // when its receiving, or the request for it, began
	receivedBytes   atomic.Int64
	cancel          context.CancelCauseFunc // ends the request
}

// newLane makes one for a source.
func (x *transfer) newLane(s Source) *lane {
	return &lane{
		node: s.Node, disk: s.Disk, window: x.window, limiter: x.limiter, networkBytes: &x.progress.PeerBytes,
		peerActivity: &x.peerActivity, chunkProgress: &x.chunkProgress,
		open: func(ctx context.Context, from, to int64) (io.ReadCloser, error) { return x.openRange(ctx, s, from, to) },
	}
}

// newUpstreamLane makes one for the origin.
func (x *transfer) newUpstreamLane() *lane {
	return &lane{open: x.upstream.open, window: x.window, limiter: x.limiter, networkBytes: &x.progress.UpstreamBytes, chunkProgress: &x.chunkProgress}
}

// name identifies the lane's source to the roster.
func (l *lane) name() string {
	if l.node == "" {
		return upstreamName
	}
	return Source{Address: Address{Node: l.node}, Disk: l.disk}.name()
}

// run asks for runs until there are none left. Its error says why the source should
// not be asked on for now.
func (l *lane) run(ctx context.Context) error {
	l.window.addLane()
	defer l.window.removeLane()
	for {
		if l.shouldStop != nil && l.shouldStop() {
			return errNotNeeded
		}
		r, err := l.window.nextRun(ctx, l)
		if err != nil || r.from == r.to {
			return err
		}
		begun := time.Now()
		err = l.fetchRun(ctx, r)
		l.busyTime += time.Since(begun)
		l.window.unassign(l)
		if err != nil && !errors.Is(err, errHedgeLost) {
			return err
		}
	}
}

// fetchRun asks for r and delivers chunk after chunk of it.
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

// openRange opens a part of the image, if that begins in time.
func (l *lane) openRange(ctx context.Context, cancel context.CancelCauseFunc, from, to int64) (io.ReadCloser, error) {
	alarm := time.AfterFunc(stallTimeout, func() { cancel(fmt.Errorf("no answer in %v", stallTimeout)) })
	defer alarm.Stop()
	body, err := l.open(ctx, from, to)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	return body, nil
}

// pacedReader counts and limits what is read of body, and watches over it.
func (l *lane) pacedReader(ctx context.Context, cancel context.CancelCauseFunc, body io.Reader) io.Reader {
	return fetch.RateLimitReader(ctx, fetch.StallReader(countingReader{body, l}, stallTimeout, cancel), l.limiter)
}

// causeOf prefers the reason for which ctx was ended to what came of it.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// receiveChunk reads chunk n and delivers it if it is right.
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
	}
	return nil
}

// readChunk fills data with chunk n.
func (l *lane) readChunk(from io.Reader, n int64, data []byte) error {
	want, err := l.window.manifest.Hash(n)
	if err != nil {
		return &manifestError{err}
	}
	if _, err := io.ReadFull(from, data); err != nil {
		return earlyEnd(err)
	}
	return l.checkChunk(n, data, want)
}

// checkChunk compares the bytes of chunk n with their sum.
func (l *lane) checkChunk(n int64, data []byte, want disk.ChunkHash) error {
	if disk.HashChunk(data) != want {
		return &InvalidDataError{l.node, l.disk, fmt.Errorf("chunk %d has not the checksum that the manifest names", n)}
	}
	return nil
}

// earlyEnd makes an error of an end that came too early.
func earlyEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// countingReader counts what a lane reads.
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

// activityClock is when something came last, from whomever.
type activityClock struct {
	start  time.Time
	latest atomic.Int64 // nanoseconds since begun
}

func (b *activityClock) touch() { b.latest.Store(int64(time.Since(b.start))) }

func (b *activityClock) since() time.Duration {
	return time.Since(b.start) - time.Duration(b.latest.Load())
}

// setRequest notes that a request begins, or with nil that none is under way.
func (l *lane) setRequest(cancel context.CancelCauseFunc) {
	l.window.mu.Lock()
	defer l.window.mu.Unlock()
	l.cancel, l.receiving, l.receivingLength, l.receivingSince = cancel, -1, disk.ChunkSize, time.Now()
	l.receivedBytes.Store(0)
}

// startReceiving notes that chunk n is next. The time of the request counts for the
// first one. The caller holds the window.
func (l *lane) startReceiving(n, length int64) {
	if l.receiving >= 0 {
		l.receivingSince = time.Now()
	}
	l.receiving, l.receivingLength = n, length
	l.receivedBytes.Store(0)
}

// updateRate learns the rate from the chunk that has come.
func (l *lane) updateRate() {
	l.window.mu.Lock()
	defer l.window.mu.Unlock()
	now := float64(l.receivingLength) / max(time.Since(l.receivingSince).Seconds(), 1e-6)
	if l.rate == 0 {
		l.rate = now
	}
	l.rate = (l.rate + now) / 2
}

// cancelChunk ends the request if it is receiving chunk n. The caller holds the window.
func (l *lane) cancelChunk(n int64, why error) {
	if l.receiving == n && l.cancel != nil {
		l.cancel(why)
	}
}

// runLength returns how many chunks to ask for at once, where so many lanes share the
// window. The caller holds the window.
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

// chunkTime returns how long the source needs for a chunk. The caller holds the
// window.
func (l *lane) chunkTime() time.Duration {
	if l.rate == 0 {
		return time.Second
	}
	return time.Duration(disk.ChunkSize / l.rate * float64(time.Second))
}

// timeLeft estimates how long the chunk that is being received will still take: by the
// rate so far, or if it is overdue, by what came of it, or else as long as it took.
// The caller holds the window.
func (l *lane) timeLeft() time.Duration {
	if l.cancel == nil {
		return 0
	}
	took, got := time.Since(l.receivingSince), float64(l.receivedBytes.Load())
	missing := max(0, float64(l.receivingLength)-got)
	if l.rate > 0 && took < 2*l.chunkTime() {
		return time.Duration(missing / l.rate * float64(time.Second))
	}
	if got < 1 {
		return took
	}
	return time.Duration(min(float64(took)*max(1, missing/got), float64(time.Hour)))
}
