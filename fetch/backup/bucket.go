package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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

// bucket is a Store in a bucket of an S3 server. An object is put by one request, so
// that there are no uploads of parts that somebody would have to abort.
type bucket struct{ *fetch.Bucket }

// maxEntries bounds what one folder lists.
const maxEntries = 1 << 20

// Close lets go of connections.
func (b *bucket) Close() error {
	b.Bucket.Close()
	return nil
}

// objectName returns the name of an object in the bucket. No key leads out of the path.
func (b *bucket) objectName(key string) string {
	return strings.TrimPrefix(path.Join("/", b.Path, path.Join("/", key)), "/")
}

// Open asks for an object.
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

// checkHeader refuses a body that is not the object itself.
func checkHeader(h http.Header) error {
	if e := h.Get("Content-Encoding"); e != "" && e != "identity" {
		return errorf(fetch.BadSource, "the server encodes the body (Content-Encoding: %q) although identity was asked for", e)
	}
	if strings.HasPrefix(strings.ToLower(h.Get("Content-Type")), "text/html") {
		return errorf(fetch.Refused, "the server answers with a web page")
	}
	return nil
}

// Put puts an object. The sum is in the signature: a server that takes other bytes
// for these is none of S3.
func (b *bucket) Put(ctx context.Context, key string, data []byte) error {
	sum := sha256.Sum256(data)
	o := minio.PutObjectOptions{ContentType: "application/octet-stream", DisableContentSha256: true}
	info, err := minio.Core{Client: b.Client}.PutObject(ctx, b.Name, b.objectName(key), bytes.NewReader(data), int64(len(data)), "", hex.EncodeToString(sum[:]), o)
	if err == nil && info.ETag == "" {
		err = errorf(fetch.Refused, "the server does not answer as S3 does")
	}
	if err != nil {
		return b.wrapError(ctx, "write", key, err)
	}
	return nil
}

// Delete removes an object. There are no folders in a bucket.
func (b *bucket) Delete(ctx context.Context, key string) error {
	err := b.RemoveObject(ctx, b.Name, b.objectName(key), minio.RemoveObjectOptions{})
	if err != nil && minio.ToErrorResponse(err).Code != minio.NoSuchKey {
		return b.wrapError(ctx, "delete", key, err)
	}
	return nil
}

// List asks for what has the folder's path, page by page, up to the next slash.
func (b *bucket) List(ctx context.Context, dir string) ([]Entry, error) {
	prefix := b.objectName(dir) + "/"
	var entries []Entry
	for o := range b.ListObjectsIter(ctx, b.Name, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, b.wrapError(ctx, "list", dir, o.Err)
		}
		if len(entries) == maxEntries {
			return nil, b.wrapError(ctx, "list", dir, errorf(fetch.Refused, "there are more than %d entries", maxEntries))
		}
		name, below := strings.CutPrefix(o.Key, prefix)
		name, isDir := strings.CutSuffix(name, "/")
		switch {
		case !below || strings.Contains(name, "/"):
			return nil, b.wrapError(ctx, "list", dir, errorf(fetch.Refused, "the server lists what was not asked for"))
		case name == "": // some clients make an object for a folder
		case isDir:
			entries = append(entries, Entry{Name: name, Dir: true})
		default:
			entries = append(entries, Entry{Name: name, Size: o.Size, Modified: o.LastModified})
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx) // the list would end without a word
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return entries, nil
}

// wrapError gives an error its class and says where it happened.
func (b *bucket) wrapError(ctx context.Context, verb, key string, err error) error {
	answer := minio.ToErrorResponse(err)
	if verb == "read" && answer.StatusCode == http.StatusNotFound && answer.Code == minio.NoSuchKey {
		return fmt.Errorf("read %s/%s: %w", b, key, fs.ErrNotExist)
	}
	err = b.Classify(ctx, err)
	if ctx.Err() != nil {
		return err
	}
	return errorf(classOf(err), "%s %s/%s: %w", verb, b, key, err)
}
