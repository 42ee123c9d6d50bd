package peer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

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
