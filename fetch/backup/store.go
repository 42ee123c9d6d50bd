package backup

import (
	"context"
	"io"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Store is a backup target: objects by slash-separated keys below the target's
// root. The keys are clean, relative and of the characters A-Z, a-z, 0-9, "_", "."
// and "-". Any number of goroutines may use one Store at once.
//
// An object that is not there is fs.ErrNotExist. Every other error is a
// *fetch.Error with its class, or that of ctx.
type Store interface {
	// Open returns the bytes of an object. They end with an error, not with io.EOF,
	// when they are cut; watching for stalls is the Store's concern.
	Open(ctx context.Context, key string) (io.ReadCloser, error)
	// Put makes an object, or replaces it: whole and durable, or not at all. It
	// does not keep data.
	Put(ctx context.Context, key string, data []byte) error
	// Delete removes an object. None there is no error. It takes along the folders
	// that are empty then.
	Delete(ctx context.Context, key string) error
	// List returns what is directly in a folder, sorted by name. A folder that is
	// not there is empty.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Close lets go of the target.
	Close() error
	// String names the target in messages, without any secret.
	String() string
}

// Entry is one name in a folder of a Store.
type Entry struct {
	Name     string    // the last element of the key
	Dir      bool      // a folder; the rest is not told then
	Size     int64     // bytes
	Modified time.Time // by the store's clock, not ours
}

// retryDelays are how long a request waits that failed for what a moment may mend: at
// once, for a connection that was closed, and longer for a server that is busy. A
// backup is thousands of requests, and one of them is no reason to begin anew.
var retryDelays = [...]time.Duration{0, time.Second, 5 * time.Second}

// retryStore is a Store that asks again after fetch.Dropped and fetch.Network. Bytes
// that break off are not asked for again here.
type retryStore struct{ Store }

func (p retryStore) retry(ctx context.Context, request func() error) error {
	for _, pause := range retryDelays {
		err := request()
		if !isClass(err, fetch.Dropped, fetch.Network) {
			return err
		}
		if sleep(ctx, pause) != nil {
			return err
		}
	}
	return request()
}

func (p retryStore) Open(ctx context.Context, key string) (r io.ReadCloser, err error) {
	err = p.retry(ctx, func() error { r, err = p.Store.Open(ctx, key); return err })
	return r, err
}

func (p retryStore) Put(ctx context.Context, key string, data []byte) error {
	return p.retry(ctx, func() error { return p.Store.Put(ctx, key, data) })
}

func (p retryStore) Delete(ctx context.Context, key string) error {
	return p.retry(ctx, func() error { return p.Store.Delete(ctx, key) })
}

func (p retryStore) List(ctx context.Context, folder string) (entries []Entry, err error) {
	err = p.retry(ctx, func() error { entries, err = p.Store.List(ctx, folder); return err })
	return entries, err
}
