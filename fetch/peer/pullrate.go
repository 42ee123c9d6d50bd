package peer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

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
