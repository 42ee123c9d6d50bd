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
	// hopeless is how long a transfer goes on without a source.
	hopeless = 30 * time.Second
	// fewBreaks is how often in a row the connection to a source may break before that
	// counts as having none.
	fewBreaks = 3
	// longestQueue is how long peers are believed that they are busy with others, when
	// nothing comes of any.
	longestQueue = time.Hour
)

// originName is what the roster calls the origin: no node can be called so.
const originName = "the origin"

// ending is the end of a lane.
type ending struct {
	lane *lane
	err  error
}

// supervise keeps as many lanes at work as there are sources for, until ctx ends. It
// fails when there is no use in going on.
func (x *exchange) supervise(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		x.engage(ctx, &work)
		x.consider(ctx, &work)
		if len(x.lanes) == 0 && !x.complete && x.lost() {
			return x.roster.failure()
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-x.ended:
			if err := x.settle(e); err != nil {
				return err
			}
		case <-time.After(x.roster.pause()):
		}
	}
}

// lost reports whether nothing was of use for too long, and nobody asked to come back.
func (x *exchange) lost() bool { return min(x.sound.since(), x.busy.since()) >= hopeless }

// engage starts a lane for each source that may be asked and is not, one for a node.
func (x *exchange) engage(ctx context.Context, work *sync.WaitGroup) {
	if x.complete {
		return
	}
	sources := x.shuffled()
	started := false
	for _, s := range sources {
		if x.roster.of(s.name()).usable() {
			started = x.start(ctx, work, s) || started
		}
	}
	if started || len(x.lanes) > 0 {
		return
	}
	for _, s := range sources { // better a poor one than none
		if x.roster.of(s.name()).poor {
			x.start(ctx, work, s)
		}
	}
}

// shuffled returns the sources in an order of chance, so that receivers spread.
func (x *exchange) shuffled() []Source {
	sources := slices.Clone(x.Sources())
	rand.Shuffle(len(sources), func(i, j int) { sources[i], sources[j] = sources[j], sources[i] })
	return sources
}

// start starts a lane for s, unless the node of s is asked already or sends chunks
// of something else.
func (x *exchange) start(ctx context.Context, work *sync.WaitGroup, s Source) bool {
	if len(x.lanes) >= maxLanes || !s.Chunks.IsZero() && s.Chunks != x.root {
		return false
	}
	for _, l := range x.lanes {
		if l.node == s.Node {
			return false
		}
	}
	x.launch(ctx, work, x.lane(s))
	return true
}

func (x *exchange) launch(ctx context.Context, work *sync.WaitGroup, l *lane) {
	x.lanes[l.name()] = l
	work.Go(func() { x.ended <- ending{l, l.work(ctx)} })
}

// settle notes how a lane ended. An error of its own is one of this side.
func (x *exchange) settle(e ending) error {
	delete(x.lanes, e.lane.name())
	switch {
	case e.err == nil:
		x.complete = true
		return nil
	case errors.Is(e.err, errLeft):
		return nil
	}
	if ours, ok := errors.AsType[*manifestError](e.err); ok {
		return ours.err
	}
	if x.Final != nil && x.Final(e.err) {
		return e.err
	}
	s := x.roster.of(e.lane.name())
	s.failed(e.err, e.lane.brought, cmp.Or(x.Aside, longestAside))
	if broken(e.err) && s.tries <= fewBreaks {
		x.sound.touch() // the chunk that it broke in may have taken longer than hopeless
	}
	if s.busy && x.peers.since() < longestQueue { // the sends that it is busy with may hang
		x.busy.touch()
	}
	if wrong(e.err) && x.Warn != nil {
		x.Warn(e.err)
	}
	return nil
}

const (
	// lonely is how long peers may bring nothing before the origin is asked, and how
	// long they are watched before it is compared with them.
	lonely = 10 * time.Second
	// probeChunks is what the origin is compared by.
	probeChunks = 8
	// firstProbe is the time until it is compared again; it doubles.
	firstProbe = time.Minute
)

// errLeft ends the lane of an origin that is not needed.
var errLeft = errors.New("it is not needed")

// reserve is the origin in the eyes of a transfer: the nodes of a cluster should read
// it once between them, but no transfer should be slower than it alone would be.
type reserve struct {
	open    source        // nil: there is none
	samples []sample      // one a second, of the last ones
	begun   time.Time     // when the first byte came of a peer
	probe   time.Time     // not before is it compared again
	wait    time.Duration // after the next comparison
}

// sample is how far the transfer was at a time.
type sample struct {
	at      time.Time
	bytes   int64 // of peers
	starved time.Duration
}

// consider starts a lane for the origin if the peers are not enough: if none brings
// anything, until one does; or if the part waits for them most of the time, and the
// origin turns out to be faster than all of them. As long as a peer is busy with others
// the image is spreading, and soon there are more to ask.
func (x *exchange) consider(ctx context.Context, work *sync.WaitGroup) {
	if x.origin.open == nil || x.complete || x.lanes[originName] != nil || !x.roster.of(originName).usable() {
		return
	}
	o := &x.origin
	last := x.sample()
	o.record(last)
	l := x.originLane()
	switch {
	case x.quiet() >= lonely && x.window.waits() >= lonely:
		l.leave = func() bool { return x.quiet() < time.Second }
	case x.busy.since() >= lonely && o.slow(last, x.Limit):
		o.wait = max(2*o.wait, firstProbe)
		o.probe = last.at.Add(o.wait)
		peers := o.rate(last)
		l.quota = probeChunks
		l.leave = func() bool { return l.brought >= probeChunks && l.average() <= peers }
	default:
		return
	}
	x.launch(ctx, work, l)
}

// quiet returns how long no peer brought anything, or asked to come back.
func (x *exchange) quiet() time.Duration { return min(x.peers.since(), x.busy.since()) }

func (x *exchange) sample() sample {
	return sample{at: time.Now(), bytes: x.progress.Peers.Load(), starved: x.window.starved()}
}

// record keeps the samples of the last ten seconds.
func (o *reserve) record(s sample) {
	if o.begun.IsZero() && s.bytes > 0 {
		o.begun = s.at
	}
	if n := len(o.samples); n > 0 && s.at.Sub(o.samples[n-1].at) < time.Second/2 {
		return
	}
	o.samples = append(o.samples, s)
	for len(o.samples) > 1 && s.at.Sub(o.samples[1].at) >= lonely {
		o.samples = append(o.samples[:0], o.samples[1:]...)
	}
}

// slow reports whether the origin should be compared with the peers: they are what
// the part waits for, and not the limit.
func (o *reserve) slow(now sample, limit int64) bool {
	if o.begun.IsZero() || now.at.Sub(o.begun) < lonely || now.at.Before(o.probe) {
		return false
	}
	if limit > 0 && o.rate(now) >= 0.8*float64(limit) {
		return false
	}
	first := o.samples[0]
	return now.starved-first.starved > now.at.Sub(first.at)/2
}

// rate returns the bytes per second of all peers together.
func (o *reserve) rate(now sample) float64 {
	first := o.samples[0]
	return float64(now.bytes-first.bytes) / max(now.at.Sub(first.at).Seconds(), 1)
}

// average returns the bytes per second of l while it was asking.
func (l *lane) average() float64 {
	return float64(l.brought*disk.ChunkSize) / max(l.asking.Seconds(), 1e-6)
}

const (
	firstAside   = 5 * time.Second
	longestAside = 5 * time.Minute
)

// roster is what a Pull has learned of its sources, by their names.
type roster map[string]*standing

// standing is what is known of one source.
type standing struct {
	err   error     // why it was set aside last; nil: it never was
	until time.Time // it is set aside until then
	poor  bool      // it does send: slowly, or until the connection breaks
	busy  bool      // it asked to come back
	tries int       // in a row that failed
}

// name identifies a source to the roster and to people.
func (s Source) name() string { return s.Node + "/" + s.Disk }

func (r *roster) of(name string) *standing {
	if *r == nil {
		*r = roster{}
	}
	if (*r)[name] == nil {
		(*r)[name] = new(standing)
	}
	return (*r)[name]
}

// usable reports whether the source may be asked.
func (s *standing) usable() bool { return !time.Now().Before(s.until) }

// failed sets a source aside that brought so many chunks before: for longer each time,
// up to most, unless the connection just broke of one that did well.
func (s *standing) failed(err error, brought int64, most time.Duration) {
	if busy, ok := errors.AsType[*BusyError](err); ok {
		*s = standing{err: err, busy: true, until: time.Now().Add(busy.After), tries: s.tries}
		return
	}
	broke, well := broken(err), brought >= firstRun
	s.err, s.busy, s.poor = err, false, errors.Is(err, errSlow) || broke && brought > 0
	if well && !wrong(err) && !errors.Is(err, errSlow) {
		s.tries = 0
	}
	wait := min(firstAside<<min(s.tries, 8), most)
	if s.tries++; broke && well {
		wait = 0
	}
	s.until = time.Now().Add(wait)
}

func wrong(err error) bool {
	_, ok := errors.AsType[*WrongError](err)
	return ok
}

func broken(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// pause returns how long to wait until something may have become usable.
func (r roster) pause() time.Duration {
	wait := time.Second
	for _, s := range r {
		if left := time.Until(s.until); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}

// failure is the error when no source was of use for too long.
func (r roster) failure() error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if s := r[name]; s.err != nil {
			lines = append(lines, fmt.Sprintf("%s: %v", name, s.err))
		}
	}
	why := cmp.Or(strings.Join(lines, "; "), "no other node has a ready copy that can be asked")
	return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no source for %v: %s", hopeless, why)}
}
