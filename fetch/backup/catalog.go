package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// isClass reports whether err has one of the classes.
func isClass(err error, classes ...fetch.Class) bool {
	known, ok := errors.AsType[*fetch.Error](err)
	return ok && slices.Contains(classes, known.Class)
}

// List returns the names of all backups in a Store, sorted. They include incomplete and
// invalid backups.
func List(ctx context.Context, s Store) ([]string, error) {
	entries, err := s.List(ctx, imagesFolder)
	if err != nil {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Dir {
			names = append(names, e.Name)
		}
	}
	return names, nil
}

// LoadComplete returns the backup with a name. If it is missing or incomplete, the error has the class
// fetch.Refused, because it may be completed later. If it is invalid, the class is fetch.BadSource.
func LoadComplete(ctx context.Context, s Store, name string) (*Backup, error) {
	b, err := Load(ctx, s, name)
	switch {
	case err != nil:
		return nil, err
	case b == nil:
		return nil, fetch.Errorf(fetch.Refused, "there is no backup %s in %s", name, s)
	case !b.Complete():
		return nil, fetch.Errorf(fetch.Refused, "backup %s in %s is incomplete: its writer still runs, or was interrupted (then back up the image again to complete it)", name, s)
	}
	return b, nil
}

// Load returns the backup with a name, complete or not. It returns nil if the backup does not exist.
func Load(ctx context.Context, s Store, name string) (*Backup, error) {
	if err := checkName(name); err != nil {
		return nil, &fetch.Error{Class: fetch.BadSource, Err: err}
	}
	r, err := s.Open(ctx, cfgKey(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read backup %s: %w", name, err)
	}
	defer r.Close()
	in := &fetch.ErrorRecorder{R: r}
	b, err := parseCfg(in)
	switch {
	case in.Err != nil:
		return nil, fmt.Errorf("read backup %s: %w", name, in.Err)
	case err == nil && b.Name != name:
		err = fmt.Errorf("it contains the name of another backup, %.80q", b.Name)
	}
	if err != nil {
		return nil, fetch.Errorf(fetch.BadSource, "%s of backup %s in %s is invalid: %w", cfgName, name, s, err)
	}
	return b, nil
}

// objectReader reads objects of a Store, limits the rate and counts the bytes.
type objectReader struct {
	limit   *rate.Limiter // nil: no limit
	counter *atomic.Int64
}

// read reads an object into buf and returns its bytes. The length of buf must be the maximum length
// of a valid object plus one byte.
func (t objectReader) read(ctx context.Context, s Store, key string, buf []byte) ([]byte, error) {
	r, err := s.Open(ctx, key)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	paced := fetch.RateLimitReader(ctx, r, t.limit)
	for n := 0; ; {
		got, err := paced.Read(buf[n:])
		n += got
		t.counter.Add(int64(got))
		switch {
		case n == len(buf):
			return nil, fmt.Errorf("%w: its file has %d bytes or more", errWrongBytes, n)
		case errors.Is(err, io.EOF):
			return buf[:n], nil
		case err != nil:
			return nil, err
		}
	}
}
