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
	// maxRequests is the number of requests at the same time, and maxLength the length of a request in bytes.
	maxRequests, maxLength = 8, 64 << 20
	// firstBackoff is the backoff of a request that the server rejected while it served others, or whose connection broke at
	// once. maxBackoff is the longest backoff.
	firstBackoff, maxBackoff = 100 * time.Millisecond, 2 * time.Second
)

// upstream fetches chunks from the chunk store, and ranges of the image file, from one address at a time: it is the only
// candidate of an assembly. The methods candidates and failed are for one goroutine.
type upstream struct {
	download  *Download
	index     *caibx.Table
	limiter   *rate.Limiter
	health    assemble.Health      // of the addresses
	store     *store               // nil: none is declared
	addresses []*fetch.RangeReader // none: the file is packed, so its ranges are not ranges of the image
	failures  []*fetch.Error       // one for each of the first addresses, which are not used any more
	matched   atomic.Bool          // a chunk from a range had its id
	done      func()
}

// openUpstream opens the sources of missing chunks. It sends no request. The caller calls close.
func (d *Download) openUpstream(index *caibx.Table) (*upstream, error) {
	u := &upstream{
		download: d, index: index, limiter: fetch.NewLimiter(d.Request.BandwidthLimit), done: func() {},
		health: assemble.Health{First: firstBackoff, Max: maxBackoff, Useful: 1, Tries: fetch.MaxDrops},
	}
	addresses, done, err := d.Client.OpenRanges(d.Request, index.ImageSize())
	if err == nil {
		u.addresses, u.done = addresses, done
	} else if !errors.Is(err, fetch.ErrPacked) {
		return nil, err
	}
	if d.Request.Store != "" {
		if u.store, err = d.openStore(index.Header().Digest, u.limiter); err != nil {
			u.close()
			return nil, err
		}
	}
	return u, nil
}

func (u *upstream) close() {
	if u.store != nil {
		u.store.files.Close()
	}
	u.done()
}

// name returns the name of the address in use.
func (u *upstream) name() string { return strconv.Itoa(len(u.failures)) }

// candidates returns the only candidate of an assembly.
func (u *upstream) candidates() []assemble.Candidate {
	ranges := u.ranges()
	return []assemble.Candidate{{
		Name: u.name(), Limits: u.limits, Delivered: u.delivered,
		Provider: assemble.Open(func(ctx context.Context, from, to int64) (io.ReadCloser, error) {
			if chunk := u.fromStore(ctx, from, to); chunk != nil {
				return io.NopCloser(bytes.NewReader(chunk)), nil
			}
			body, err := ranges.Open(ctx, from, to)
			return rangeBody{body}, err
		}),
		Invalid: func(s assemble.Segment) error {
			return &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("%w at %d", errWrongChunk, s.Offset)}
		},
	}}
}

// limits returns the limits of the requests. A request to the store is for one chunk, which is its own file. Until the first
// chunk of a range shows that the index is of this file, only one chunk is requested.
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

// errWrongChunk means that the upstream has other bytes than the index.
var errWrongChunk = errors.New("the file has other bytes than the index")

// ranges returns the provider of ranges from the address in use.
func (u *upstream) ranges() assemble.Provider {
	if len(u.addresses) == 0 {
		return assemble.Open(func(context.Context, int64, int64) (io.ReadCloser, error) {
			return nil, &indexError{restart: true, err: errors.New("the chunk store does not have all chunks, and the file is packed, so ranges of it are not ranges of the image")}
		})
	}
	return assemble.Limited(assemble.Counted(u.addresses[len(u.failures)], &u.download.Progress.UpstreamBytes), u.limiter)
}

// failed goes on with the next address, or ends the download by the index.
func (u *upstream) failed(c assemble.Candidate, err error) error {
	if c.Name != u.name() || !u.health.Ended(c.Name) {
		return nil // the address is tried again, or is not used any more already
	}
	failed, ok := errors.AsType[*fetch.Error](err)
	if !ok {
		return err
	}
	if u.failures = append(u.failures, failed); len(u.failures) < len(u.addresses) {
		return nil
	}
	for _, failed := range u.failures {
		switch {
		case errors.Is(failed, fetch.ErrOtherSize):
			return &indexError{err: fmt.Errorf("%w: %w", errWrongChunk, failed), restart: true}
		case errors.Is(failed, errWrongChunk):
			return &indexError{err: failed, restart: !u.matched.Load()}
		}
	}
	all := fetch.AllFailed(u.failures)
	if all.Class == fetch.Refused && errors.Is(all, fetch.ErrNoRanges) { // no address will have ranges in a later attempt
		return &indexError{err: all, restart: true}
	}
	return all
}

// fromStore returns a chunk from the store; nil: the store does not have the chunk.
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
	misses    atomic.Int64 // number of consecutive misses
	ended     atomic.Bool  // the store is not used any more
	unpackers sync.Pool
}

// maxMisses is the number of consecutive missing or wrong chunks after which the store is not used any more.
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
