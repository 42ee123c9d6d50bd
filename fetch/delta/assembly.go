package delta

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// maxRuns limits how far the assembly plans ahead.
const maxRuns = 1024

// assembly appends the chunks of an image to a partial file. All methods are called by one goroutine.
type assembly struct {
	planner
	part     *disk.Part
	upstream *upstream

	ctx      context.Context
	fetching sync.WaitGroup
	inWindow int64  // bytes of the fetchers
	fetchers int    // that are not finished
	queue    []*run // planned, in order; the first one contains at
	started  int    // the runs at the begin of the queue that have a fetcher or need none
	at       int64  // offset of the next byte
	item     []byte // the bytes of the missing or repeated item that contains at; nil: none
	itemAt   int64  // its offset
	err      error  // the reason why Read failed
}

func newAssembly(index *caibx.Table, seeds []*seed, part *disk.Part, u *upstream) *assembly {
	return &assembly{planner: newPlanner(index, seeds, u.hasStore()), part: part, upstream: u}
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
			done, err := a.appendWhole(min(disk.ChunkSize, size-a.at))
			if err != nil {
				return err
			}
			if done {
				continue
			}
		}
		rest := min(disk.ChunkSize-a.at%disk.ChunkSize, size-a.at)
		if _, err := a.part.ReadFrom(io.LimitReader(a, rest)); err != nil {
			if a.err != nil {
				return a.err
			}
			return err
		}
	}
	return nil
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
		if done, err := a.appendFromSeed(r.seed, a.at/disk.ChunkSize, length); !done || err != nil {
			return false, err
		}
	default:
		return false, nil
	}
	a.at += length
	return true, nil
}

// appendFromSeed appends a chunk of the manifest of a seed. It returns false if the chunk is damaged: Read finds that
// again, and requests its items.
func (a *assembly) appendFromSeed(s *seed, n, length int64) (bool, error) {
	zero, err := s.Manifest.IsZero(n)
	if err != nil {
		return false, err
	}
	if zero {
		return true, a.part.AppendZeros(length)
	}
	hash, err := s.Manifest.Hash(n)
	if err != nil {
		return false, err
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
		n, err := r.seed.verified.ReadAt(p, r.from+a.at-r.offset)
		switch {
		case n > 0:
			return n, nil // the error occurs again
		case isDamaged(err):
			a.fetchDamaged(r)
			return 0, nil
		}
		return 0, err
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
			return r.fetcher.err
		}
		a.item = chunk
		return nil
	case <-a.ctx.Done():
		return context.Cause(a.ctx)
	}
}

// head returns the run that contains at. It plans ahead, and starts the fetchers that the window has room for.
func (a *assembly) head() *run {
	for len(a.queue) > 0 && a.queue[0].limit <= a.at {
		if f := a.queue[0].fetcher; f != nil {
			a.inWindow, a.fetchers = a.inWindow-f.bytes, a.fetchers-1
		}
		a.queue, a.started = a.queue[1:], max(0, a.started-1)
	}
	for {
		for a.started < len(a.queue) && a.start(a.queue[a.started]) {
			a.started++
		}
		if a.started < len(a.queue) || len(a.queue) == maxRuns {
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
	if r != a.queue[0] && (a.fetchers >= limit || a.inWindow+r.limit-r.offset > window) {
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
	}
}

// fetchDamaged replaces the first run, which reads from a seed, by up to three: the items of the damaged chunk at the
// present offset are fetched, those before and after it are still read from the seed.
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
