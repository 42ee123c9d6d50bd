package delta

import (
	"context"
	"errors"
	"io"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// downloadAround downloads the whole file in ranges, except for the bytes that showed that the index is of another file:
// no byte is transferred twice. It resumes after a broken connection.
func (d *Download) downloadAround(ctx context.Context, part *disk.Part, have *wrongItem) error {
	from, err := d.Client.NewRangeReader(d.Request)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := part.Begin(disk.PartSource{ID: fetch.AddressID(d.Request.URL), Size: have.size}); err != nil {
		return err
	}
	d.Progress.Joined.Store(true)
	d.Progress.Total.Store(have.size)
	d.Progress.Resume(0)
	around := &aroundReader{ctx: ctx, upstream: &upstream{download: d, limiter: fetch.NewLimiter(d.Request.BandwidthLimit)}, from: from, have: have}
	defer around.close()
	if _, err := part.ReadFrom(fetch.CountReader(ctx, around, &d.Progress.Done)); err != nil {
		if failed, ok := errors.AsType[*fetch.Error](err); ok {
			return failed
		}
		return err
	}
	return nil
}

// aroundReader reads a file in ranges, except for the bytes of one item.
type aroundReader struct {
	ctx      context.Context
	upstream *upstream
	from     *fetch.RangeReader
	have     *wrongItem

	at    int64 // offset of the next byte
	body  io.ReadCloser
	in    io.Reader
	stop  context.CancelCauseFunc
	drops int // consecutive connections without a byte
}

// Read implements io.Reader. Its errors are an *fetch.Error or that of ctx.
func (r *aroundReader) Read(p []byte) (n int, err error) {
	defer func() { r.at += int64(n) }()
	haveEnd := r.have.offset + int64(len(r.have.bytes))
	end := r.have.size
	switch {
	case r.at == r.have.size:
		return 0, io.EOF
	case r.at >= r.have.offset && r.at < haveEnd:
		r.close()
		return copy(p, r.have.bytes[r.at-r.have.offset:]), nil
	case r.at < r.have.offset:
		end = r.have.offset
	}
	if r.body == nil {
		if err := r.open(end); err != nil {
			return 0, err
		}
	}
	n, err = r.in.Read(p[:min(int64(len(p)), end-r.at)])
	if n > 0 {
		r.drops = 0
		return n, nil // an error occurs again
	}
	if err == nil {
		return 0, nil
	}
	r.close()
	if r.drops++; r.ctx.Err() != nil || r.drops > maxDrops {
		return 0, bodyError(r.ctx, r.ctx, err)
	}
	return 0, nil
}

func (r *aroundReader) open(end int64) error {
	attempt, cancel := context.WithCancelCause(r.ctx)
	body, err := r.from.Open(attempt, r.at, end)
	if err != nil {
		cancel(nil)
		return err
	}
	r.body, r.in, r.stop = body, r.upstream.reader(attempt, cancel, body), cancel
	return nil
}

func (r *aroundReader) close() {
	if r.body != nil {
		r.body.Close()
		r.stop(nil)
		r.body = nil
	}
}
