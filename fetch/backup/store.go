package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Store is a backup target: objects with slash-separated keys below the root of the target. Keys are
// clean and relative, and consist of A-Z, a-z, 0-9, "_", "." and "-". A Store is safe for concurrent
// use.
//
// The error for a missing object is fs.ErrNotExist. Every other error is a *fetch.Error,
// or the error of ctx.
type Store interface {
	// Open returns a reader of an object. If the body is truncated, the reader returns an error other
	// than io.EOF. The Store detects stalls.
	Open(ctx context.Context, key string) (io.ReadCloser, error)
	// Put creates or replaces an object, completely and durably or not at all. It does not keep data
	// after it returns.
	Put(ctx context.Context, key string, data []byte) error
	// Delete removes an object, and then the folders that are empty. A missing object is not an error.
	Delete(ctx context.Context, key string) error
	// List returns the direct entries of a folder, sorted by name. A missing folder has no entries.
	List(ctx context.Context, folder string) ([]Entry, error)
	// Close releases the target.
	Close() error
	// String returns the address of the target without secrets.
	String() string
}

// Entry is one entry of a folder of a Store.
type Entry struct {
	Name     string    // the last element of the key
	Dir      bool      // a folder; Size and Modified are then zero
	Size     int64     // in bytes
	Modified time.Time // according to the clock of the store
}

// retryDelays are the delays before further attempts after a temporary error: no delay if a
// connection was closed, and longer delays if a server is busy. A backup consists of thousands of
// requests, so a single failure must not fail the backup.
var retryDelays = [...]time.Duration{0, time.Second, 5 * time.Second}

// retryStore is a Store that repeats requests after fetch.Dropped and fetch.Network. It does not
// repeat a request after its body has begun.
type retryStore struct{ Store }

func (p retryStore) retry(ctx context.Context, request func() error) error {
	for _, pause := range retryDelays {
		err := request()
		if !isClass(err, fetch.Dropped, fetch.Network) {
			return err
		}
		if fetch.Sleep(ctx, pause) != nil {
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

// IsStored reports whether a Store has an object undamaged. size returns the size of the object that would be put. valid
// judges the stored bytes.
//
//	folder    the object is read back: the disk or the share may have truncated or damaged the
//	          file, and a read is not more expensive than a write
//	bucket    the server stored the object atomically and with its own checksum: the object is
//	          read back only if its size differs from the size of the new object
func IsStored(ctx context.Context, s Store, key string, size func() int64, valid func(object io.Reader) (bool, error)) (bool, error) {
	if !isFolder(s) {
		entries, err := s.List(ctx, path.Dir(key))
		if err != nil {
			return false, err
		}
		n := slices.IndexFunc(entries, func(e Entry) bool { return e.Name == path.Base(key) && !e.Dir })
		if n < 0 || entries[n].Size == size() {
			return n >= 0, nil
		}
	}
	object, err := s.Open(ctx, key)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer object.Close() // it was only read
	return valid(object)
}

func isFolder(s Store) bool {
	if p, ok := s.(retryStore); ok {
		s = p.Store
	}
	_, ok := s.(*folder)
	return ok
}
