package delta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

const (
	// window is the number of bytes that are fetched before they are appended.
	window = 2 << 20
	// maxRequests is the number of requests at the same time, and maxLength the length of one in bytes.
	maxRequests, maxLength = 8, 64 << 20
	// firstBackoff is the time after which a request is repeated that the server rejected while it served others, or whose
	// connection broke at once; maxBackoff is that of the last attempt.
	firstBackoff, maxBackoff = 100 * time.Millisecond, 2 * time.Second
)

// upstream fetches chunks from the chunk store, and ranges of the image file: it is the only source of an assembly. The
// methods candidates and failed are for one goroutine.
type upstream struct {
	download *Download
	index    *caibx.Table
	size     int64 // of the image
	limiter  *rate.Limiter
	health   assemble.Health
	store    *store             // nil: none is declared
	ranges   *fetch.RangeReader // nil: the file is packed, so that there are no ranges
	skip     int                // the addresses before this one have sent wrong bytes
	matched  atomic.Bool        // a chunk from a range had its id
}

// openUpstream opens the sources of missing chunks. It sends no request. The caller calls close.
func (d *Download) openUpstream(index *caibx.Table) (*upstream, error) {
	u := &upstream{
		download: d, index: index, size: index.ImageSize(), limiter: fetch.NewLimiter(d.Request.BandwidthLimit),
		health: assemble.Health{First: firstBackoff, Max: maxBackoff, Useful: 1, Tries: fetch.MaxDrops},
	}
	var err error
	if d.Request.Store != "" {
		if u.store, err = d.openStore(index.Header().Digest, u.limiter); err != nil {
			return nil, err
		}
	}
	u.ranges, err = d.Client.NewRangeReader(d.Request)
	if err != nil && !errors.Is(err, fetch.ErrPacked) {
		u.close()
		return nil, err
	}
	return u, nil
}

func (u *upstream) close() {
	if u.store != nil {
		u.store.files.Close()
	}
	if u.ranges != nil {
		u.ranges.Close()
	}
}

// isEmpty reports whether nothing can be fetched.
func (u *upstream) isEmpty() bool { return !u.store.isUsed() && u.ranges == nil }

// name is that of the source that does not use the addresses which sent wrong bytes.
func (u *upstream) name() string { return strconv.Itoa(u.skip) }

// candidates returns the only one of an assembly.
func (u *upstream) candidates() []assemble.Candidate {
	ranges := u.openRange(u.skip)
	return []assemble.Candidate{{
		Name: u.name(), Limits: u.limits, Delivered: u.delivered,
		Provider: assemble.Open(func(ctx context.Context, from, to int64) (io.ReadCloser, error) {
			if chunk := u.fromStore(ctx, from, to); chunk != nil {
				return io.NopCloser(bytes.NewReader(chunk)), nil
			}
			return ranges(ctx, from, to)
		}),
		Invalid: func(s assemble.Segment) error {
			return &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%w at %d", errWrongChunk, s.Offset)}
		},
	}}
}

// limits returns the limits of the requests: a chunk of the store is a file of its own, and the first chunk of a range shows
// whether the index is of this file.
func (u *upstream) limits() (requests int, length int64) {
	switch {
	case u.store.isUsed():
		return maxRequests, 0
	case !u.matched.Load():
		return 1, 0
	}
	return maxRequests, maxLength
}

// rangeBody is the body of a range.
type rangeBody struct{ io.ReadCloser }

func (u *upstream) delivered(body io.ReadCloser) {
	if _, ok := body.(rangeBody); ok {
		u.matched.Store(true)
	}
}

var (
	// errWrongChunk means that the upstream has other bytes than the index.
	errWrongChunk = errors.New("the file has other bytes than the index")
	// errWrongSize means that the file of the upstream has another size.
	errWrongSize = fmt.Errorf("%w", errWrongChunk)
)

// openRange returns a provider of ranges from the addresses that are not skipped.
func (u *upstream) openRange(skip int) assemble.Open {
	if u.ranges == nil {
		return func(context.Context, int64, int64) (io.ReadCloser, error) {
			return nil, &indexError{restart: true, err: errors.New("the chunk store does not have all chunks, and the file is packed, so that ranges of it are not ranges of the image")}
		}
	}
	sized := assemble.Open(func(ctx context.Context, from, to int64) (io.ReadCloser, error) {
		body, total, err := u.ranges.OpenAfter(ctx, skip, from, to)
		if err == nil && total >= 0 && total != u.size {
			body.Close()
			err = &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%w: it has %d bytes, not %d", errWrongSize, total, u.size)}
		}
		return body, err
	})
	paced := assemble.Limited(assemble.Counted(sized, &u.download.Progress.UpstreamBytes), u.limiter)
	return func(ctx context.Context, from, to int64) (io.ReadCloser, error) {
		body, err := paced.Open(ctx, from, to)
		return rangeBody{body}, err
	}
}

// failed decides whether a failure ends the download by the index.
func (u *upstream) failed(s assemble.Candidate, err error) error {
	wrong, refused := errors.Is(err, errWrongChunk), false
	if failed, ok := errors.AsType[*fetch.Error](err); ok {
		refused = failed.Class == fetch.Refused && errors.Is(err, fetch.ErrNoRanges)
	}
	switch {
	case s.Name != u.name(): // of an address that is not used any more
		return nil
	case wrong && u.skip < u.ranges.Addresses()-1:
		u.skip++
		return nil
	case wrong:
		return &indexError{err: err, restart: errors.Is(err, errWrongSize) || !u.matched.Load()}
	case refused: // no other address may have ranges later
		return &indexError{err: err, restart: true}
	case u.health.Ended(s.Name):
		return err
	}
	return nil
}

// fromStore returns a chunk from the store; nil: it does not have it.
func (u *upstream) fromStore(ctx context.Context, from, to int64) (chunk []byte) {
	if !u.store.isUsed() {
		return nil
	}
	_ = caibx.CatchFaults(func() (err error) { // a fault occurs again when the chunk is planned
		if i := u.index.Item(u.index.At(from)); i.End() == to {
			chunk, err = u.store.chunk(ctx, i)
		}
		return err
	})
	return chunk
}

// store is a chunk store. It is safe for concurrent use.
type store struct {
	files     *fetch.ChunkStore
	warn      func(error)
	digest    caibx.Digest
	read      func(ctx context.Context, r io.Reader, limit int64) ([]byte, error)
	plain     atomic.Bool  // the chunks are not packed
	misses    atomic.Int64 // consecutive ones
	ended     atomic.Bool  // the store is not used any more
	unpackers sync.Pool
}

// maxMisses is the number of consecutive chunks that the store does not have, or has wrong, after which it is not used any
// more.
const maxMisses = 4

func (d *Download) openStore(digest caibx.Digest, limiter *rate.Limiter) (*store, error) {
	files, err := d.Client.OpenChunkStore(d.Request)
	if err != nil {
		return nil, err
	}
	return &store{
		files: files, warn: d.Warn, digest: digest, unpackers: sync.Pool{New: func() any { return caibx.NewUnpacker() }},
		read: func(ctx context.Context, r io.Reader, limit int64) ([]byte, error) {
			r = fetch.CountReader(ctx, fetch.RateLimitReader(ctx, r, limiter), &d.Progress.UpstreamBytes)
			return io.ReadAll(io.LimitReader(r, limit+1))
		},
	}, nil
}

func (s *store) isUsed() bool { return s != nil && !s.ended.Load() }

// chunk returns a chunk. After maxMisses errors in a row, the store is not used any more.
func (s *store) chunk(ctx context.Context, i caibx.Item) ([]byte, error) {
	plain := s.plain.Load()
	chunk, err := s.open(ctx, i, plain)
	if failed, ok := errors.AsType[*fetch.Error](err); ok && failed.Class == fetch.Refused && !plain {
		// A store has either packed chunks or plain ones.
		if other, otherErr := s.open(ctx, i, true); otherErr == nil {
			s.plain.Store(true)
			chunk, err = other, nil
		}
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		s.misses.Store(0)
	case s.misses.Add(1) >= maxMisses && !s.ended.Swap(true):
		s.warn(fmt.Errorf("chunk store %s is not used any more: %w", s.files, err))
	}
	return chunk, err
}

// open returns a verified chunk from its file.
func (s *store) open(ctx context.Context, i caibx.Item, plain bool) ([]byte, error) {
	name, limit := i.ID.PackedPath(), caibx.MaxPacked(i.Length)
	if plain {
		name, limit = i.ID.PlainPath(), i.Length
	}
	body, size, err := s.files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if size > limit {
		return nil, &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("chunk %s has %d bytes, at most %d are possible", i.ID, size, limit)}
	}
	stored, err := s.read(ctx, body, limit)
	if err != nil {
		return nil, err
	}
	if plain {
		if int64(len(stored)) != i.Length {
			return nil, fmt.Errorf("%w: it has %d bytes, not %d", caibx.ErrWrongChunk, len(stored), i.Length)
		}
		return stored, s.digest.Check(stored, i.ID)
	}
	unpacker := s.unpackers.Get().(*caibx.Unpacker)
	defer s.unpackers.Put(unpacker)
	chunk := make([]byte, i.Length)
	if err := unpacker.Unpack(chunk, stored, s.digest, i.ID); err != nil {
		return nil, fmt.Errorf("chunk %s: %w", i.ID, err)
	}
	return chunk, nil
}
