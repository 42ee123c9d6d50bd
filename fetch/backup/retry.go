package backup

import (
	"context"
	"io"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// pauses are how long a request waits that failed for what a moment may mend: at
// once, for a connection that was closed, and longer for a server that is busy. A
// backup is thousands of requests, and one of them is no reason to begin anew.
var pauses = [...]time.Duration{0, time.Second, 5 * time.Second}

// patient is a Store that asks again after fetch.Dropped and fetch.Network. Bytes
// that break off are not asked for again here.
type patient struct{ Store }

func (p patient) try(ctx context.Context, request func() error) error {
	for _, pause := range pauses {
		err := request()
		if !isClass(err, fetch.Dropped, fetch.Network) {
			return err
		}
		if wait(ctx, pause) != nil {
			return err
		}
	}
	return request()
}

func (p patient) Open(ctx context.Context, key string) (r io.ReadCloser, err error) {
	err = p.try(ctx, func() error { r, err = p.Store.Open(ctx, key); return err })
	return r, err
}

func (p patient) Put(ctx context.Context, key string, data []byte) error {
	return p.try(ctx, func() error { return p.Store.Put(ctx, key, data) })
}

func (p patient) Delete(ctx context.Context, key string) error {
	return p.try(ctx, func() error { return p.Store.Delete(ctx, key) })
}

func (p patient) List(ctx context.Context, folder string) (entries []Entry, err error) {
	err = p.try(ctx, func() error { entries, err = p.Store.List(ctx, folder); return err })
	return entries, err
}
