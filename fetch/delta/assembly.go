package delta

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	// maxRuns limits how far the assembly plans ahead.
	maxRuns = 1024
	// maxRetries limits the retries after a failure while there were several connections. The first one waits for
	// firstRetry, each other one twice as long as the one before.
	maxRetries = 6
	firstRetry = 50 * time.Millisecond
)

// assembly appends the chunks of an image to a partial file. All methods are called by one goroutine.
type assembly struct {
	planner
	part     *disk.Part
	upstream *upstream

	ctx      context.Context
	fetching sync.WaitGroup
	inWindow int64  // bytes of the fetchers
	fetchers int    // that are not finished
	retries  int    // how often a single fetcher may still fail; maxRetries: there may be several
	queue    []*run // planned, in order; the first one contains at
	started  int    // the runs at the begin of the queue that have a fetcher or need none
	at       int64  // offset of the next byte
	item     []byte // the bytes of the missing or repeated item that contains at; nil: none
	itemAt   int64  // its offset
	err      error  // the reason why Read failed
}

func newAssembly(index *caibx.Table, seeds []*seed, part *disk.Part, u *upstream) *assembly {
	return &assembly{planner: newPlanner(index, seeds, u.hasStore()), part: part, upstream: u, retries: maxRetries}
}

// run appends all bytes from the end of the partial file on.
func (a *assembly) run(ctx context.Context, progress *fetch.Progress) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer a.fetching.Wait()
	defer cancel(nil)
	a.ctx = ctx
	a.at = a.part.Offset()
	a.rewind(a.at)
	for size := a.index.ImageSize(); a.at < size; progress.Done.Store(a.at) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if a.at%disk.ChunkSize == 0 {
			if err := a.forgetIndex(); err != nil {
				return err
			}
			done, err := a.appendWhole(min(disk.ChunkSize, size-a.at))
			if err != nil {
				return err
			}
			if done {
				continue
			}
		}
		rest := min(disk.ChunkSize-a.at%disk.ChunkSize, size-a.at)
		_, err := a.part.ReadFrom(io.LimitReader(a, rest))
		if a.err != nil { // err is nil if a.err wraps io.EOF
			return a.err
		}
		if err != nil {
			return err
		}
	}
	return a.forgetIndex()
}

// forgetIndex records that the partial file is not downloaded by its index any more, if that is so: the next attempt
// then keeps the bytes, and the index does not become that of the image.
func (a *assembly) forgetIndex() error {
	source := a.part.Source()
	if !a.all || source.Index == "" {
		return nil
	}
	if err := a.part.DropIndex(); err != nil || a.at%disk.ChunkSize > 0 { // the image ends here
		return err
	}
	source.Index = ""
	return a.part.Continue(source)
}

// appendWhole appends the next chunk of the partial file without a copy, if it is a hole, or if a seed has it at the
// same place.
func (a *assembly) appendWhole(length int64) (bool, error) {
	if a.upstream.unlike.Load() > 0 && !a.all {
		a.fetchAll()
	}
	r := a.head()
	if r.limit < a.at+length {
		return false, nil
	}
	switch {
	case r.place == zeros:
		if err := a.part.AppendZeros(length); err != nil {
			return false, err
		}
	case r.place == fromSeed && r.from == r.offset && r.seed.Manifest.ChunkLength(a.at/disk.ChunkSize) == length:
		if done, err := a.appendFromSeed(r.seed, a.at/disk.ChunkSize, length); !done {
			return false, err
		}
	default:
		return false, nil
	}
	a.at += length
	return true, nil
}

// appendFromSeed appends a chunk of the manifest of a seed. It returns false without an error if the chunk is damaged
// or cannot be read: Read finds that again, and requests its items.
func (a *assembly) appendFromSeed(s *seed, n, length int64) (bool, error) {
	zero, err := s.Manifest.IsZero(n)
	if err != nil {
		return false, nil
	}
	if zero {
		err := a.part.AppendZeros(length)
		return err == nil, err
	}
	hash, err := s.Manifest.Hash(n)
	if err != nil {
		return false, nil
	}
	if err = a.part.AppendFrom(s.Reader, n*disk.ChunkSize, length, hash); errors.Is(err, disk.ErrDamaged) {
		return false, nil
	}
	return err == nil, err
}

// Read returns the next bytes of the image. It implements io.Reader for disk.Part.ReadFrom.
func (a *assembly) Read(p []byte) (n int, err error) {
	for n == 0 && a.err == nil {
		n, a.err = a.read(p)
	}
	a.at += int64(n)
	if n > 0 {
		return n, nil // an error is returned by the next call
	}
	return 0, a.err
}

// read returns 0 bytes and no error if another place has to be tried.
func (a *assembly) read(p []byte) (int, error) {
	if a.ctx.Err() != nil {
		return 0, context.Cause(a.ctx)
	}
	if a.upstream.unlike.Load() > 0 && !a.all {
		a.fetchAll()
	}
	r := a.head()
	p = p[:min(int64(len(p)), r.limit-a.at)]
	switch r.place {
	case zeros:
		clear(p)
		return len(p), nil
	case fromSeed:
		n, _ := r.seed.verified.ReadAt(p, r.from+a.at-r.offset) // whatever the error is, the bytes can be fetched
		if n == 0 {
			a.fetchDamaged(r)
		}
		return n, nil
	}
	if a.item == nil {
		if err := a.nextItem(r); a.item == nil || err != nil {
			return 0, err
		}
	}
	n := copy(p, a.item[a.at-a.itemAt:])
	if a.at+int64(n) == a.itemAt+int64(len(a.item)) {
		a.item = nil
	}
	return n, nil
}

// nextItem sets the item that contains at. It sets none if the place of the item has changed.
func (a *assembly) nextItem(r *run) error {
	i := a.index.Item(itemAt(a.index, a.at))
	a.itemAt = i.Offset
	if r.place == repeated {
		chunk := make([]byte, i.Length)
		err := a.part.ReadBack(chunk, r.from)
		if err == nil && a.index.Header().Digest.Check(chunk, i.ID) == nil {
			a.item = chunk
		} else if err == nil {
			r.place, a.started = missing, 0
		}
		return err
	}
	select {
	case chunk, more := <-r.fetcher.items:
		if !more {
			return a.fetchAgain(r)
		}
		a.item = chunk
		return nil
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	}
}

// fetchAgain lets another fetcher fetch the items of a run that its fetcher did not fetch, if that may have failed because
// there were several: some servers serve only a few connections at a time. From then on there is one at a time, which may
// fail a few times, because a server notices late that a connection has ended. Otherwise fetchAgain returns the error of
// the fetcher.
func (a *assembly) fetchAgain(r *run) error {
	if err := r.fetcher.err; err != errAlone {
		failed, ok := errors.AsType[*fetch.Error](err)
		isBusy := ok && failed.RetryAfter == 0 && (failed.Class == fetch.Network || failed.Class == fetch.Dropped)
		if !isBusy || a.retries == 0 || a.retries == maxRetries && a.fetchers == 1 {
			return err
		}
		if a.retries == maxRetries {
			a.stopFetchers()
		}
		select {
		case <-time.After(firstRetry << (maxRetries - a.retries)):
		case <-a.ctx.Done():
			return context.Cause(a.ctx)
		}
		a.retries--
	}
	r.first = itemAt(a.index, a.at)
	r.offset = a.index.Item(r.first).Offset
	a.drop(r)
	a.started = 0
	return nil
}

// stopFetchers stops all fetchers. What they have fetched is used.
func (a *assembly) stopFetchers() {
	for _, r := range a.queue {
		if r.fetcher != nil {
			r.fetcher.stop(errAlone)
		}
	}
	a.fetching.Wait()
	for _, r := range a.queue {
		if r.fetcher != nil && r.fetcher.err != nil {
			r.fetcher.err = errAlone // if there is another reason, the next one finds it
		}
	}
}

// head returns the run that contains at. It plans ahead, and starts the fetchers that the window has room for.
func (a *assembly) head() *run {
	for len(a.queue) > 0 && a.queue[0].limit <= a.at {
		if a.queue[0].fetcher != nil {
			a.drop(a.queue[0])
		}
		a.queue, a.started = a.queue[1:], max(0, a.started-1)
	}
	for {
		for a.started < len(a.queue) && a.start(a.queue[a.started]) {
			a.started++
		}
		if a.started < len(a.queue) || len(a.queue) >= maxRuns {
			return a.queue[0]
		}
		a.single = a.upstream.hasStore() || !a.upstream.matched.Load()
		r := a.plan()
		if r == nil {
			return a.queue[0]
		}
		a.queue = append(a.queue, r)
	}
}

// start starts the fetcher of a run, if it needs one. It returns false if the window is full. It always starts that of
// the first run.
func (a *assembly) start(r *run) bool {
	if r.place != missing || r.fetcher != nil {
		return true
	}
	limit := maxFetchers
	if !a.upstream.matched.Load() && !a.upstream.hasStore() {
		limit = 1 // the first chunk shows whether the index is of this file
	}
	if a.retries < maxRetries {
		limit = 1 // the server does not serve several
	}
	if r != a.queue[0] && (a.fetchers >= limit || a.inWindow+min(r.limit-r.offset, window) > window) {
		return false
	}
	r.fetcher = a.upstream.start(a.ctx, &a.fetching, a.index, r)
	a.inWindow, a.fetchers = a.inWindow+r.fetcher.bytes, a.fetchers+1
	return true
}

// fetchAll plans to fetch everything after the offset at which the file is unlike its index. The bytes of fetchers are
// those of the file in any case.
func (a *assembly) fetchAll() {
	a.all, a.started = true, 0
	for _, r := range a.queue {
		if r.place != missing && r.limit > a.upstream.unlike.Load() {
			r.place, r.seed = missing, nil
		}
		if r.fetcher != nil && r.fetcher.store && r.offset > a.upstream.unlike.Load() { // its chunks may be those of the index
			a.drop(r)
		}
	}
}

// drop removes the fetcher of a run, whose chunks are not used.
func (a *assembly) drop(r *run) {
	a.inWindow, a.fetchers = a.inWindow-r.fetcher.bytes, a.fetchers-1
	r.fetcher = nil
}

// fetchDamaged replaces the first run, which reads from a seed, by up to two: the items of the damaged or unreadable
// chunk at the present offset are fetched, those after it are still read from the seed.
func (a *assembly) fetchDamaged(r *run) {
	n := (r.from + a.at - r.offset) / disk.ChunkSize
	r.seed.damaged(n)
	first := itemAt(a.index, a.at)
	end := first + 1
	for chunkEnd := (n+1)*disk.ChunkSize - r.from + r.offset; end < r.end && a.index.Item(end).Offset < chunkEnd; {
		end++
	}
	fetched := &run{location: location{place: missing}, first: first, end: end, offset: a.index.Item(first).Offset, limit: a.index.Item(end - 1).End()}
	runs := []*run{fetched}
	if end < r.end {
		rest := *r
		rest.first, rest.offset = end, fetched.limit
		rest.from += rest.offset - r.offset
		runs = append(runs, &rest)
	}
	a.queue, a.started = slices.Concat(runs, a.queue[1:]), 0
}
