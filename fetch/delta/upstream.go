package delta

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	// window is the number of bytes that are fetched before they are appended, except for the run that is next.
	window = 2 << 20
	// maxFetchers is the number of runs that are fetched at the same time.
	maxFetchers = 8
	// maxDrops is the number of consecutive connections without a chunk after which a fetch fails.
	maxDrops = 5
	// maxMisses is the number of consecutive chunks that the store does not have, or has wrong, after which it is not
	// used any more.
	maxMisses = 4
	// stallTimeout is the time without bytes, or with less than 1 KiB/s, after which a connection fails.
	stallTimeout = 30 * time.Second
)

// upstream fetches chunks from the chunk store, and ranges of the image file. It is safe for concurrent use.
type upstream struct {
	download *Download
	digest   caibx.Digest
	limiter  *rate.Limiter
	ranges   []*fetch.RangeReader      // reader n does not use the first n addresses; none: there are no ranges
	skip     atomic.Int64              // the addresses before this one have sent wrong bytes
	wrong    atomic.Pointer[wrongItem] // from the first address
	matched  atomic.Bool               // a chunk from a range had its id
	// unlike is the first offset at which a range had other bytes than the index, after others had the same; 0: none.
	// From there on the bytes of the file count, not those of the index.
	unlike atomic.Int64

	store      *fetch.ChunkStore // nil: none is declared
	plain      atomic.Bool       // the chunks of the store are not packed
	misses     atomic.Int64      // consecutive ones
	storeEnded atomic.Bool       // the store is not used any more
	unpackers  sync.Pool
}

// openUpstream opens the sources of missing chunks. It sends no request. The caller calls close.
func (d *Download) openUpstream(index *caibx.Table) (*upstream, error) {
	u := &upstream{
		download: d, digest: index.Header().Digest, limiter: fetch.NewLimiter(d.Request.BandwidthLimit),
		unpackers: sync.Pool{New: func() any { return caibx.NewUnpacker() }},
	}
	if d.Request.Store != "" {
		store, err := d.Client.OpenChunkStore(d.Request)
		if err != nil {
			return nil, err
		}
		u.store = store
	}
	request := d.Request
	for ; request.SkipAddresses <= len(request.Mirrors); request.SkipAddresses++ {
		r, err := d.Client.NewRangeReader(request)
		if errors.Is(err, fetch.ErrPacked) {
			break
		}
		if err != nil {
			u.close()
			return nil, err
		}
		u.ranges = append(u.ranges, r)
	}
	return u, nil
}

func (u *upstream) close() {
	if u.store != nil {
		u.store.Close()
	}
	for _, r := range u.ranges {
		r.Close()
	}
}

// isEmpty reports whether nothing can be fetched.
func (u *upstream) isEmpty() bool { return !u.hasStore() && len(u.ranges) == 0 }

func (u *upstream) hasStore() bool {
	return u.store != nil && !u.storeEnded.Load() && u.unlike.Load() == 0
}

// fetcher fetches the items of one run, in order.
type fetcher struct {
	items chan []byte // the verified bytes of each item; closed at the end
	err   error       // of the fetch; valid when items is closed
	bytes int64       // that count as in the window
	store bool        // some of the items may be from the store
	stop  context.CancelCauseFunc
}

// errAlone stops a fetcher so that another one can fetch alone.
var errAlone = errors.New("another fetcher fetches alone")

// start begins to fetch a run. The items that are received are in the queue of the fetcher until they are used. The
// goroutine ends when ctx ends; done waits for it.
func (u *upstream) start(ctx context.Context, done *sync.WaitGroup, index *caibx.Table, r *run) *fetcher {
	// The queue has at most window bytes, because more items wait for the connection.
	queued := max(1, min(r.end-r.first, window/int64(index.Header().Max)))
	ctx, stop := context.WithCancelCause(ctx)
	f := &fetcher{items: make(chan []byte, queued), bytes: min(r.limit-r.offset, window), store: u.hasStore(), stop: stop}
	done.Go(func() {
		defer stop(nil)
		defer close(f.items)
		f.err = caibx.CatchFaults(func() error {
			return u.fetch(ctx, index, r, func(chunk []byte) error {
				select {
				case f.items <- chunk:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		})
	})
	return f
}

// fetch passes the chunks of a run to put, in order.
func (u *upstream) fetch(ctx context.Context, index *caibx.Table, r *run, put func([]byte) error) error {
	for n := r.first; n < r.end; {
		if u.hasStore() && n == r.first {
			chunk, err := u.fromStore(ctx, index.Item(n))
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err == nil {
				if err := put(chunk); err != nil {
					return err
				}
				n++
				continue
			}
		}
		if len(u.ranges) == 0 {
			return &indexError{err: errors.New("the chunk store does not have all chunks, and the file is packed, so that ranges of it are not ranges of the image")}
		}
		got, err := u.fetchRange(ctx, index, n, r.end, put)
		if err != nil {
			return err
		}
		n = got
	}
	return nil
}

var (
	// errWrongChunk means that the upstream has other bytes than the index.
	errWrongChunk = errors.New("the file has other bytes than the index")
	// errWrongSize means that the file of the upstream has another size.
	errWrongSize = fmt.Errorf("%w", errWrongChunk)
)

// fetchRange passes the chunks from item first on to put, from one address after the other. It requests the rest again
// after a broken connection. It returns the first item that it did not pass on.
func (u *upstream) fetchRange(ctx context.Context, index *caibx.Table, first, end int64, put func([]byte) error) (int64, error) {
	for drops := 0; ; {
		skip := u.skip.Load()
		n, err := u.readRange(ctx, u.ranges[skip], index, first, end, put)
		if n > first {
			first, drops = n, 0
		}
		failed, isFetch := errors.AsType[*fetch.Error](err)
		switch {
		case err == nil, ctx.Err() != nil:
			return first, err
		case errors.Is(err, fetch.ErrNoRanges) && failed.Class == fetch.Refused: // no other address may have ranges later
			return first, &indexError{err: err, restart: true}
		case errors.Is(err, errWrongChunk) && int(skip) < len(u.ranges)-1:
			u.skip.CompareAndSwap(skip, skip+1)
		case errors.Is(err, errWrongChunk) && !errors.Is(err, errWrongSize) && u.matched.Load():
			u.setUnlike(index.Item(first), err)
			u.skip.Store(0)
		case errors.Is(err, errWrongChunk):
			return first, &indexError{err: err, restart: true, wrong: u.wrong.Load()}
		case isFetch && failed.Class == fetch.Dropped && drops < maxDrops:
			drops++
		default:
			return first, err
		}
	}
}

// readRange reads the chunks of one response.
func (u *upstream) readRange(ctx context.Context, from *fetch.RangeReader, index *caibx.Table, first, end int64, put func([]byte) error) (int64, error) {
	attempt, cancel := context.WithCancelCause(ctx) // a stall cancels attempt, but not ctx
	defer cancel(nil)
	body, total, err := from.OpenTotal(attempt, index.Item(first).Offset, index.Item(end-1).End())
	if err != nil {
		return first, err
	}
	defer body.Close()
	in := u.reader(attempt, cancel, body)
	for n := first; n < end; n++ {
		i := index.Item(n)
		chunk := make([]byte, i.Length)
		if _, err := io.ReadFull(in, chunk); err != nil {
			return n, bodyError(ctx, attempt, err)
		}
		if u.unlike.Load() == 0 {
			if err := u.check(chunk, i, total, index.ImageSize()); err == nil {
				u.matched.Store(true)
			} else if len(u.ranges) == 1 && u.matched.Load() && !errors.Is(err, errWrongSize) {
				u.setUnlike(i, err) // there is no other address: these bytes count, and those that follow
			} else {
				return n, err
			}
		}
		if err := put(chunk); err != nil {
			return n, err
		}
	}
	return end, nil
}

// check compares a chunk of a file of total bytes with the index of an image of size bytes. A total below 0 is not known.
func (u *upstream) check(chunk []byte, i caibx.Item, total, size int64) error {
	var err error
	switch {
	case total >= 0 && total != size:
		err = fmt.Errorf("%w: it has %d bytes, not %d", errWrongSize, total, size)
	case u.digest.Check(chunk, i.ID) != nil:
		err = fmt.Errorf("%w at %d", errWrongChunk, i.Offset)
	default:
		return nil
	}
	u.wrong.CompareAndSwap(nil, &wrongItem{i.Offset, max(total, 0), chunk})
	return &fetch.Error{Class: fetch.BadSource, Err: err}
}

// setUnlike lets the bytes of the file count from an item on, because it differs from the index for the reason err.
func (u *upstream) setUnlike(i caibx.Item, err error) {
	if u.unlike.CompareAndSwap(0, max(1, i.Offset)) {
		u.download.Warn(fmt.Errorf("the rest of the file is downloaded, not only the difference: %w", err))
	}
}

// reader counts the bytes of a body, limits their rate and detects stalls.
func (u *upstream) reader(ctx context.Context, cancel context.CancelCauseFunc, body io.Reader) io.Reader {
	limited := fetch.RateLimitReader(ctx, fetch.StallReader(body, stallTimeout, cancel), u.limiter)
	return fetch.CountReader(ctx, limited, &u.download.Progress.UpstreamBytes)
}

// bodyError classifies an error of a body: the end of ctx, a stall, or a broken connection.
func bodyError(ctx, attempt context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if cause := context.Cause(attempt); cause != nil {
		return &fetch.Error{Class: fetch.Network, Err: cause}
	}
	if known, ok := errors.AsType[*fetch.Error](err); ok {
		return known
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &fetch.Error{Class: fetch.Dropped, Err: fmt.Errorf("connection broke: %w", err)}
}

// fromStore returns a chunk from the store. After maxMisses errors in a row, the store is not used any more.
func (u *upstream) fromStore(ctx context.Context, i caibx.Item) ([]byte, error) {
	plain := u.plain.Load()
	chunk, err := u.readStored(ctx, i, plain)
	if isMissing(err) && !plain {
		// A store has either packed chunks or plain ones.
		if other, otherErr := u.readStored(ctx, i, true); otherErr == nil {
			u.plain.Store(true)
			chunk, err = other, nil
		}
	}
	switch {
	case ctx.Err() != nil:
	case err == nil:
		u.misses.Store(0)
	case u.misses.Add(1) >= maxMisses && !u.storeEnded.Swap(true):
		u.download.Warn(fmt.Errorf("chunk store %s is not used any more: %w", u.store, err))
	}
	return chunk, err
}

// isMissing reports whether the store does not have a file.
func isMissing(err error) bool {
	failed, ok := errors.AsType[*fetch.Error](err)
	return ok && failed.Class == fetch.Refused
}

func (u *upstream) readStored(ctx context.Context, i caibx.Item, plain bool) ([]byte, error) {
	attempt, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	name, limit := i.ID.PackedPath(), caibx.MaxPacked(i.Length)
	if plain {
		name, limit = i.ID.PlainPath(), i.Length
	}
	body, size, err := u.store.Open(attempt, name)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	if size > limit {
		return nil, &fetch.Error{Class: fetch.BadSource, Err: fmt.Errorf("chunk %s has %d bytes, at most %d are possible", i.ID, size, limit)}
	}
	stored, err := io.ReadAll(io.LimitReader(u.reader(attempt, cancel, body), limit+1))
	if err != nil {
		return nil, bodyError(ctx, attempt, err)
	}
	if plain {
		if int64(len(stored)) != i.Length {
			err = fmt.Errorf("%w: it has %d bytes, not %d", caibx.ErrWrongChunk, len(stored), i.Length)
		} else {
			err = u.digest.Check(stored, i.ID)
		}
		return stored, err
	}
	unpacker := u.unpackers.Get().(*caibx.Unpacker)
	defer u.unpackers.Put(unpacker)
	chunk := make([]byte, i.Length)
	if err := unpacker.Unpack(chunk, stored, u.digest, i.ID); err != nil {
		return nil, fmt.Errorf("chunk %s: %w", i.ID, err)
	}
	return chunk, nil
}
