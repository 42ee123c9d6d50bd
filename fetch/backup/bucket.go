package backup

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// bucket is a Store in a bucket of an S3 server.
type bucket struct{ *fetch.Bucket }

// maxEntries is the largest number of entries in one folder.
const maxEntries = 1 << 20

// Close closes idle connections.
func (b *bucket) Close() error {
	b.Bucket.Close()
	return nil
}

// objectName returns the name of an object in the bucket. No key can refer to an object outside the
// path of the Store.
func (b *bucket) objectName(key string) string {
	return strings.TrimPrefix(path.Join("/", b.Path, path.Join("/", key)), "/")
}

// Open requests the bytes of an object.
func (b *bucket) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	var o minio.GetObjectOptions
	o.Set("Accept-Encoding", "identity")
	body, _, header, err := minio.Core{Client: b.Client}.GetObject(ctx, b.Name, b.objectName(key), o)
	if err == nil {
		if err = checkHeader(header); err != nil {
			body.Close()
		}
	}
	if err != nil {
		return nil, b.wrapError(ctx, "read", key, err)
	}
	return body, nil
}

// checkHeader returns an error if the body is not the object itself.
func checkHeader(h http.Header) error {
	if e := fetch.Encoding(h); e != "" {
		return fetch.Errorf(fetch.BadSource, "the server encoded the body (Content-Encoding: %q) although the request allowed only identity", e)
	}
	if strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), "text/html") {
		return fetch.Errorf(fetch.Refused, "the server sent a web page instead of the object")
	}
	return nil
}

// Put stores an object.
func (b *bucket) Put(ctx context.Context, key string, data []byte) error {
	if err := b.Bucket.Put(ctx, b.objectName(key), "application/octet-stream", data); err != nil {
		return b.wrapError(ctx, "write", key, err)
	}
	return nil
}

// Delete removes an object. A bucket has no folders to remove.
func (b *bucket) Delete(ctx context.Context, key string) error {
	err := b.RemoveObject(ctx, b.Name, b.objectName(key), minio.RemoveObjectOptions{})
	if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchKey {
		return b.wrapError(ctx, "delete", key, err)
	}
	return nil
}

// List requests the names of the objects directly below the folder, page by page.
func (b *bucket) List(ctx context.Context, dir string) ([]Entry, error) {
	prefix := b.objectName(dir) + "/"
	var entries []Entry
	for o := range b.ListObjectsIter(ctx, b.Name, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, b.wrapError(ctx, "list", dir, o.Err)
		}
		if len(entries) == maxEntries {
			return nil, b.wrapError(ctx, "list", dir, fetch.Errorf(fetch.Refused, "there are more than %d entries", maxEntries))
		}
		name, below := strings.CutPrefix(o.Key, prefix)
		name, isDir := strings.CutSuffix(name, "/")
		switch {
		case !below || strings.Contains(name, "/"):
			return nil, b.wrapError(ctx, "list", dir, fetch.Errorf(fetch.Refused, "the server lists objects outside of the requested folder"))
		case name == "": // some clients create an empty object for a folder
		case isDir:
			entries = append(entries, Entry{Name: name, Dir: true})
		default:
			entries = append(entries, Entry{Name: name, Size: o.Size, Modified: o.LastModified})
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the iterator ended without an error
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return entries, nil
}

// wrapError classifies an error and adds the operation and the address of the object.
func (b *bucket) wrapError(ctx context.Context, verb, key string, err error) error {
	answer := minio.ToErrorResponse(err)
	if verb == "read" && answer.StatusCode == http.StatusNotFound && answer.Code == minio.NoSuchKey {
		return fmt.Errorf("read %s/%s: %w", b, key, fs.ErrNotExist)
	}
	err = b.Classify(ctx, err)
	if ctx.Err() != nil {
		return err
	}
	return fetch.Errorf(classOf(err), "%s %s/%s: %w", verb, b, key, err)
}
