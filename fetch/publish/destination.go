package publish

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
)

// StoreName is the name of the chunk store beside the indexes. casync looks for it there.
const StoreName = "default.castr"

// Destination is the folder or the bucket where indexes and chunk stores are published. It is safe for
// concurrent use.
type Destination struct{ store backup.Store }

// Open returns the Destination at the path of a folder, which must exist, or at an address of a bucket,
// such as s3://bucket/path. The caller closes the Destination.
func Open(c *fetch.Client, to, credentials string) (*Destination, error) {
	scheme, _, isAddress := strings.Cut(to, ":")
	if isAddress && scheme == "s3" {
		s, err := backup.Open(c, to, credentials)
		return &Destination{s}, err
	}
	path, err := filepath.Abs(to)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case err != nil && isAddress && strings.Contains(to, "://"):
		return nil, fmt.Errorf("addresses of %s:// are not supported: use s3:// or the path of a folder", scheme)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("the folder %s does not exist: create it first", path)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is not a folder: use a folder or an s3:// address", path)
	}
	s, err := backup.Open(c, path, credentials)
	return &Destination{s}, err
}

// Close releases the Destination.
func (d *Destination) Close() error { return d.store.Close() }

// Address returns the address of a file in the Destination, without secrets.
func (d *Destination) Address(name string) string { return d.store.String() + "/" + name }

// Outcome is what PutIndex did.
type Outcome string

// The outcomes of PutIndex.
const (
	Created   Outcome = "created"
	Unchanged Outcome = "unchanged" // the same index was there already
	Replaced  Outcome = "replaced"
)

// DifferentError means that there is a different file with the name of the index.
type DifferentError struct{ Address string }

func (e *DifferentError) Error() string { return e.Address + " exists and is a different index" }

// PutIndex writes an index, completely and durably or not at all. If there is a different file, it
// returns a *DifferentError, unless replace is set.
func (d *Destination) PutIndex(ctx context.Context, name string, t *caibx.Table, replace bool) (Outcome, error) {
	exists, same, err := d.compare(ctx, name, t.Index())
	switch {
	case err != nil:
		return "", err
	case same:
		return Unchanged, nil
	case exists && !replace:
		return "", &DifferentError{d.Address(name)}
	}
	if err := d.store.Put(ctx, name, t.Index()); err != nil {
		return "", err
	}
	if exists {
		return Replaced, nil
	}
	return Created, nil
}

// compare reports whether a file exists, and whether it has these bytes.
func (d *Destination) compare(ctx context.Context, name string, want []byte) (exists, same bool, err error) {
	r, err := d.store.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	defer r.Close() // it was only read
	h := sha256.New()
	n, err := io.Copy(h, io.LimitReader(r, int64(len(want))+1))
	return true, n == int64(len(want)) && [sha256.Size]byte(h.Sum(nil)) == sha256.Sum256(want), err
}
