package assemble

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Sink receives the bytes of an image in order. *disk.Part implements it. Another Sink gets only zeros and whole chunks. Its
// plan must be by a chunk manifest without seeds, or of a single chunk.
type Sink interface {
	// AppendChunk and AppendZeros have the contracts of the methods of disk.Part.
	AppendChunk(buf []byte, length int64, hash disk.ChunkHash) ([]byte, error)
	AppendZeros(length int64) error
}

// ChunkFunc is a Sink that passes each chunk to a function, nil for zeros. The function must not keep the chunk.
type ChunkFunc func(chunk []byte) error

// AppendChunk implements Sink.
func (f ChunkFunc) AppendChunk(buf []byte, length int64, _ disk.ChunkHash) ([]byte, error) {
	return buf, f(buf[:length])
}

// AppendZeros implements Sink.
func (f ChunkFunc) AppendZeros(int64) error { return f(nil) }

// Assembly is one transfer of an image, or of a part of it.
type Assembly struct {
	Plan *Plan
	Sink Sink
	// Candidates returns the providers that may be used now. It is called about once a second, and after each failure, by one
	// goroutine, and must not block.
	Candidates func() []Candidate
	Health     *Health // of the providers
	// Window returns how many bytes may be requested, or received and not yet appended.
	Window func() int64
	// ReserveAfter: if the other providers send no byte for this time, providers of the Reserve are used, too. 0:
	// they are used at once, but only while no other provider is free.
	ReserveAfter time.Duration
	// Patience is the time without a usable provider after which the transfer fails; 0: it never fails for this reason.
	Patience time.Duration
	// Failed is called after a failure of a provider. If it returns an error, the transfer ends. nil: no failure ends it.
	Failed   func(c Candidate, err error) error
	Progress *fetch.Progress

	part *disk.Part // the Sink; nil: the Sink is no partial file
	at   int64      // offset of the next byte for the Sink

	// For the goroutine of Run:
	local   []*run // planned runs with bytes on this node that are not yet appended, in order
	planned bool   // all runs are planned
	spare   []byte // a buffer for moved chunks
	readErr error  // the reason why Read failed

	queue    queue
	requests sync.WaitGroup
}

// Run appends all bytes of the plan from an offset on. When ctx ends, it returns within one read. The errors are those of
// the Sink, of Failed, and of Health.NoProvider. After an error of Failed or NoProvider, no more requests begin. Run then appends
// what precedes the first segment that no running request delivers, and returns the error.
func (a *Assembly) Run(ctx context.Context, offset int64) error {
	sending, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		a.requests.Wait()
		a.queue.noteSuccesses()
	}()
	a.part, _ = a.Sink.(*disk.Part)
	a.at = offset
	a.Plan.next = a.Plan.at(offset)
	a.queue.start(a.Window)
	a.requests.Go(func() {
		if err := a.schedule(sending); err != nil {
			a.queue.fail(err)
		}
	})
	for size := a.Plan.size(); a.at < size; a.Progress.Done.Store(a.at) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := a.planAhead(); err != nil {
			return err
		}
		if err := a.appendNext(ctx, min(disk.ChunkSize-a.at%disk.ChunkSize, size-a.at)); err != nil {
			return err
		}
		a.queue.progress.touch()
	}
	return nil
}

// maxRuns limits how far the assembly plans ahead.
const maxRuns = 1 << 10

// planAhead plans until the providers have enough to do, and until the place of the next byte is known.
func (a *Assembly) planAhead() error {
	for len(a.local) > 0 && a.local[0].limit <= a.at {
		a.local = a.local[1:]
	}
	for !a.planned && len(a.local) < maxRuns && a.queue.wantsMore() {
		r, err := a.Plan.nextRun()
		switch {
		case err != nil:
			return err
		case r == nil:
			a.planned = true
		case r.place != missing:
			a.local = append(a.local, r)
			continue
		default:
			if err := a.queue.add(a.Plan, r.first, r.end, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendNext appends bytes of the present chunk of the partial file, at most the length bytes that are left of the chunk.
func (a *Assembly) appendNext(ctx context.Context, length int64) error {
	s, limit := a.queue.first(a.at)
	if s != nil {
		return a.appendReceived(ctx, s, length)
	}
	r := a.local[0]
	whole := a.at%disk.ChunkSize == 0 && min(r.limit, limit) >= a.at+length
	switch {
	case whole && r.place == zeros:
		return a.advance(length, a.Sink.AppendZeros(length))
	case whole && r.place == fromSeed && r.from == r.offset && r.seed.Manifest.ChunkLength(a.at/disk.ChunkSize) == length:
		return a.appendFromSeed(r, length)
	case r.place == moved:
		return a.appendMoved(length)
	}
	return a.readInto(ctx, length)
}

// advance counts appended bytes, unless err is an error. It returns err.
func (a *Assembly) advance(length int64, err error) error {
	if err == nil {
		a.at += length
	}
	return err
}

// appendReceived appends a segment from a provider. It appends a whole chunk without copying its bytes.
func (a *Assembly) appendReceived(ctx context.Context, s *segment, length int64) error {
	hash, ok := s.Hash.(disk.ChunkHash)
	if !ok {
		return a.readInto(ctx, length)
	}
	if err := a.queue.await(ctx, s); err != nil {
		return err
	}
	buf, err := a.Sink.AppendChunk(s.buf, length, hash)
	a.queue.remove(s, buf)
	return a.advance(length, err)
}

// appendFromSeed appends a chunk that a seed has at the same place. The file system shares the blocks if it can.
func (a *Assembly) appendFromSeed(r *run, length int64) error {
	n := a.at / disk.ChunkSize
	hash, err := r.seed.Manifest.Hash(n)
	if err == nil {
		err = a.part.AppendFrom(r.seed.Reader, a.at, length, hash)
	}
	if errors.Is(err, disk.ErrDamaged) {
		return a.fetchDamaged(r)
	}
	return a.advance(length, err)
}

// appendMoved appends a chunk whose bytes are in seeds at other places, after it has verified the chunk.
func (a *Assembly) appendMoved(length int64) error {
	list, n := a.Plan.list.(*chunks), a.Plan.at(a.at)
	hash, err := list.manifest.Hash(n)
	if err != nil {
		return err
	}
	if a.spare == nil {
		a.spare = disk.NewChunkBuffer()
	}
	err = list.readMoved(a.spare[:length], list.extent(n))
	if errors.Is(err, disk.ErrDamaged) || err == nil && !hash.Matches(a.spare[:length]) { // a seed is damaged, or the index is wrong
		return a.queue.add(a.Plan, n, n+1, true)
	}
	if err == nil {
		a.spare, err = a.part.AppendChunk(a.spare, length, hash)
	}
	return a.advance(length, err)
}

// fetchDamaged reports the chunk of a seed at the present offset as damaged or unreadable. It requests the segments of run r
// in this chunk. Later segments are still read from the seed.
func (a *Assembly) fetchDamaged(r *run) error {
	n := (r.from + a.at - r.offset) / disk.ChunkSize
	r.seed.damaged(n)
	first := a.Plan.at(a.at)
	end := first + 1
	for chunkEnd := (n+1)*disk.ChunkSize - r.from + r.offset; end < r.end && a.Plan.extent(end).Offset < chunkEnd; {
		end++
	}
	return a.queue.add(a.Plan, first, end, true)
}

// readInto appends length bytes from places with segments of any size.
func (a *Assembly) readInto(ctx context.Context, length int64) error {
	_, err := a.part.ReadFrom(io.LimitReader(&reader{a, ctx}, length))
	if a.readErr != nil { // err is nil if readErr wraps io.EOF
		return a.readErr
	}
	return err
}

// reader reads the image from its present offset on.
type reader struct {
	*Assembly
	ctx context.Context
}

// Read implements io.Reader.
func (r *reader) Read(p []byte) (n int, err error) {
	for n == 0 && r.readErr == nil {
		n, r.readErr = r.read(p)
	}
	r.at += int64(n)
	if n > 0 {
		return n, nil // an error is returned by the next call
	}
	return 0, r.readErr
}

// read returns 0 bytes and no error if another place has to be tried.
func (r *reader) read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	if err := r.planAhead(); err != nil {
		return 0, err
	}
	s, limit := r.queue.first(r.at)
	if s != nil {
		if err := r.queue.await(r.ctx, s); err != nil {
			return 0, err
		}
		n := copy(p, s.buf[r.at-s.Offset:s.Length])
		if r.at+int64(n) == s.End() {
			r.queue.remove(s, s.buf)
		}
		return n, nil
	}
	from := r.local[0]
	p = p[:min(int64(len(p)), min(from.limit, limit)-r.at)]
	switch from.place {
	case zeros:
		clear(p)
		return len(p), nil
	case fromSeed:
		n, _ := from.seed.verified.ReadAt(p, from.from+r.at-from.offset) // after any error, the bytes can be fetched
		if n == 0 {
			return 0, r.fetchDamaged(from)
		}
		return n, nil
	}
	return r.readRepeated(p, from)
}

// readRepeated reads a segment back from the partial file. It requests the segment if the partial file has other bytes there.
func (r *reader) readRepeated(p []byte, from *run) (int, error) {
	hash, err := r.Plan.hash(from.first)
	if err != nil {
		return 0, err
	}
	again := make([]byte, from.limit-from.offset)
	if _, err := r.part.ReadAt(again, from.from); err != nil {
		return 0, err
	}
	if !hash.Matches(again) {
		return 0, r.queue.add(r.Plan, from.first, from.end, true)
	}
	return copy(p, again[r.at-from.offset:]), nil
}
