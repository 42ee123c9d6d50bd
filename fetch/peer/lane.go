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
	// stall is how long a source may send nothing, or less than 1 KiB/s.
	stall = 10 * time.Second
	// firstRun and longestRun are how many chunks are asked for at once: enough that
	// the request costs nothing, few enough that a source that dies takes little
	// with it.
	firstRun, longestRun = 4, 8
	// runTime is what a run should take.
	runTime = 500 * time.Millisecond
)

var (
	// errSlow ends a lane that another one was faster than by far.
	errSlow = errors.New("slower than the others by far")
	// errOvertaken ends the receiving of a chunk that another lane brought first.
	errOvertaken = errors.New("another source was faster")
)

// source opens a part of an image somewhere: the bytes from from to to, without to.
type source func(ctx context.Context, from, to int64) (io.ReadCloser, error)

// lane asks one source for one run after another.
type lane struct {
	node, disk string // "" of the origin
	open       source
	window     *window
	limiter    *rate.Limiter
	moved      *atomic.Int64 // counts what comes over the network
	heard      *beat         // touched by each byte; nil: nobody wants to know
	sound      *beat         // touched by each right chunk
	leave      func() bool   // between runs: whether to end; nil: never
	quota      int64         // chunks for which small runs are taken, so as not to exceed it

	brought int64         // chunks that were right and wanted
	asking  time.Duration // that was spent to get them

	// What follows is guarded by the window, but for got.
	rate   float64   // bytes per second; 0: not known yet
	at     int64     // the chunk that is being received; -1: none
	length int64     // its bytes
	begun  time.Time // when its receiving, or the request for it, began
	got    atomic.Int64
	cancel context.CancelCauseFunc // ends the request
}

// lane makes one for a source.
func (x *exchange) lane(s Source) *lane {
	return &lane{
		node: s.Node, disk: s.Disk, window: x.window, limiter: x.limiter, moved: &x.progress.Peers,
		heard: &x.peers, sound: &x.sound,
		open: func(ctx context.Context, from, to int64) (io.ReadCloser, error) { return x.open(ctx, s, from, to) },
	}
}

// originLane makes one for the origin.
func (x *exchange) originLane() *lane {
	return &lane{open: x.origin.open, window: x.window, limiter: x.limiter, moved: &x.progress.Moved, sound: &x.sound}
}

// name identifies the lane's source to the roster.
func (l *lane) name() string {
	if l.node == "" {
		return originName
	}
	return Source{Address: Address{Node: l.node}, Disk: l.disk}.name()
}

// work asks for runs until there are none left. Its error says why the source should
// not be asked on for now.
func (l *lane) work(ctx context.Context) error {
	l.window.enter()
	defer l.window.leave()
	for {
		if l.leave != nil && l.leave() {
			return errLeft
		}
		r, err := l.window.take(ctx, l)
		if err != nil || r.from == r.to {
			return err
		}
		begun := time.Now()
		err = l.fetch(ctx, r)
		l.asking += time.Since(begun)
		l.window.abandon(l)
		if err != nil && !errors.Is(err, errOvertaken) {
			return err
		}
	}
}

// fetch asks for r and delivers chunk after chunk of it.
func (l *lane) fetch(ctx context.Context, r run) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	l.begin(cancel)
	defer l.begin(nil)
	body, err := l.answer(ctx, cancel, r.from*disk.ChunkSize, min(r.to*disk.ChunkSize, l.window.manifest.Size()))
	if err != nil {
		return err
	}
	defer body.Close()
	from := l.paced(ctx, cancel, body)
	for n := r.from; n < r.to && l.window.claim(l, n); n++ {
		if err := l.receive(from, n); err != nil {
			return cause(ctx, err)
		}
	}
	return nil
}

// answer opens a part of the image, if that begins in time.
func (l *lane) answer(ctx context.Context, cancel context.CancelCauseFunc, from, to int64) (io.ReadCloser, error) {
	alarm := time.AfterFunc(stall, func() { cancel(fmt.Errorf("no answer in %v", stall)) })
	defer alarm.Stop()
	body, err := l.open(ctx, from, to)
	if err != nil {
		return nil, cause(ctx, err)
	}
	return body, nil
}

// paced counts and limits what is read of body, and watches over it.
func (l *lane) paced(ctx context.Context, cancel context.CancelCauseFunc, body io.Reader) io.Reader {
	return fetch.Pace(ctx, fetch.Watch(counter{body, l}, stall, cancel), l.limiter)
}

// cause prefers the reason for which ctx was ended to what came of it.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// receive reads chunk n and delivers it if it is right.
func (l *lane) receive(from io.Reader, n int64) error {
	buf := l.window.buffer()
	data := buf[:l.window.manifest.Length(n)]
	if err := l.read(from, n, data); err != nil {
		l.window.release(buf)
		return err
	}
	l.measure()
	l.sound.touch()
	if l.window.deliver(l, n, buf) {
		l.brought++
	}
	return nil
}

// read fills data with chunk n.
func (l *lane) read(from io.Reader, n int64, data []byte) error {
	want, err := l.window.manifest.At(n)
	if err != nil {
		return &manifestError{err}
	}
	if _, err := io.ReadFull(from, data); err != nil {
		return short(err)
	}
	return l.check(n, data, want)
}

// check compares the bytes of chunk n with their sum.
func (l *lane) check(n int64, data []byte, want disk.ChunkSum) error {
	if disk.SumChunk(data) != want {
		return &WrongError{l.node, l.disk, fmt.Errorf("chunk %d has not the checksum that the manifest names", n)}
	}
	return nil
}

// short makes an error of an end that came too early.
func short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// counter counts what a lane reads.
type counter struct {
	io.Reader
	lane *lane
}

func (c counter) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if n > 0 {
		c.lane.got.Add(int64(n))
		c.lane.moved.Add(int64(n))
		if c.lane.heard != nil {
			c.lane.heard.touch()
		}
	}
	return n, err
}

// beat is when something came last, from whomever.
type beat struct {
	begun time.Time
	last  atomic.Int64 // nanoseconds since begun
}

func (b *beat) touch()               { b.last.Store(int64(time.Since(b.begun))) }
func (b *beat) since() time.Duration { return time.Since(b.begun) - time.Duration(b.last.Load()) }

// begin notes that a request begins, or with nil that none is under way.
func (l *lane) begin(cancel context.CancelCauseFunc) {
	l.window.mu.Lock()
	defer l.window.mu.Unlock()
	l.cancel, l.at, l.length, l.begun = cancel, -1, disk.ChunkSize, time.Now()
	l.got.Store(0)
}

// receives notes that chunk n is next. The time of the request counts for the
// first one. The caller holds the window.
func (l *lane) receives(n, length int64) {
	if l.at >= 0 {
		l.begun = time.Now()
	}
	l.at, l.length = n, length
	l.got.Store(0)
}

// measure learns the rate from the chunk that has come.
func (l *lane) measure() {
	l.window.mu.Lock()
	defer l.window.mu.Unlock()
	now := float64(l.length) / max(time.Since(l.begun).Seconds(), 1e-6)
	if l.rate == 0 {
		l.rate = now
	}
	l.rate = (l.rate + now) / 2
}

// stop ends the request if it is receiving chunk n. The caller holds the window.
func (l *lane) stop(n int64, why error) {
	if l.at == n && l.cancel != nil {
		l.cancel(why)
	}
}

// run returns how many chunks to ask for at once, where so many lanes share the
// window. The caller holds the window.
func (l *lane) run(lanes int) int {
	length := firstRun
	if l.rate > 0 {
		length = int(min(l.rate*runTime.Seconds()/disk.ChunkSize, longestRun))
	}
	if left := l.quota - l.brought; left > 0 {
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

// left estimates how long the chunk that is being received will still take: by the
// rate so far, or if it is overdue, by what came of it, or else as long as it took.
// The caller holds the window.
func (l *lane) left() time.Duration {
	if l.cancel == nil {
		return 0
	}
	took, got := time.Since(l.begun), float64(l.got.Load())
	missing := max(0, float64(l.length)-got)
	if l.rate > 0 && took < 2*l.chunkTime() {
		return time.Duration(missing / l.rate * float64(time.Second))
	}
	if got < 1 {
		return took
	}
	return time.Duration(min(float64(took)*max(1, missing/got), float64(time.Hour)))
}
