package backup

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Open returns the Store at a target, an address as Longhorn has them:
//
//	s3://bucket@region/path/, s3://bucket/path, s3::https://host/bucket/path
//	nfs://host:/path               a share that is mounted on this machine
//	vfs:///path, file:///path, /path
//
// A folder has to be there, and below the folders whose files c may read. The server
// of a bucket is asked nothing yet. Requests that fail for what a moment may mend are
// made again a few times. Errors are *fetch.Error. Close the Store.
func Open(c *fetch.Client, target, credentials string) (Store, error) {
	s, err := connect(c, target, credentials)
	if err != nil {
		return nil, err
	}
	return patient{s}, nil
}

func connect(c *fetch.Client, target, credentials string) (Store, error) {
	if filepath.IsAbs(target) {
		target = filepath.Clean(target)
		return openFolder(c, target, target)
	}
	scheme, _, ok := strings.Cut(target, ":")
	switch {
	case !ok:
		return nil, fail(fetch.Config, "the backup target is not an address: write s3://…, nfs://…, file:///… or an absolute path")
	case scheme == "s3":
		return openBucket(c, target, credentials)
	case scheme == "cifs" || scheme == "azblob":
		return nil, fail(fetch.Config, "backup targets of %s:// are not supported: copy the backup to an S3 bucket, or mount the share and give the path", scheme)
	}
	u, err := url.Parse(target)
	switch {
	case err != nil: // the cause would print it whole
		return nil, fail(fetch.Config, "the backup target is not an address")
	case scheme != "nfs" && scheme != "vfs" && scheme != "file":
		return nil, fail(fetch.Config, "backup targets of %s:// are not supported: use s3, nfs, vfs, file or an absolute path", scheme)
	case u.User != nil:
		return nil, fail(fetch.Config, "the backup target holds a user or password, of which %s:// has none", scheme)
	case !filepath.IsAbs(u.Path):
		return nil, fail(fetch.Config, "the backup target %s://%s has no path", scheme, u.Host)
	case scheme == "nfs":
		return openShare(c, u)
	case u.Host != "" || u.RawQuery != "":
		return nil, fail(fetch.Config, "the backup target is not a path: write %s:///path", scheme)
	}
	path := filepath.Clean(u.Path)
	return openFolder(c, path, path)
}

// openShare finds where a share is mounted. Nothing is mounted here: that needs root,
// and is the operator's.
func openShare(c *fetch.Client, u *url.URL) (Store, error) {
	share := &share{strings.ToLower(u.Hostname()), filepath.Clean(u.Path)}
	if share.host == "" {
		return nil, fail(fetch.Config, "the backup target nfs://%s names no host", u.Path)
	}
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fail(fetch.Network, "read the mounts of this machine: %w", err)
	}
	defer table.Close()
	path, err := share.mounted(table)
	if err != nil {
		return nil, fail(fetch.Network, "read the mounts of this machine: %w", err)
	}
	if path == "" {
		return nil, fail(fetch.Refused, "%v is not mounted on this machine: mount it (mount -t nfs %s:%s /mnt/backups) below a folder that is given with --allow-file-root",
			share, share.host, share.path)
	}
	s, err := openFolder(c, share.String(), path)
	if err != nil {
		return nil, fail(classOf(err), "%v is mounted at %s: %w", share, path, err)
	}
	return s, nil
}

func openFolder(c *fetch.Client, name, path string) (Store, error) {
	root, err := c.Folder(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fail(classOf(err), "open the backup target: %w: mount it there, or make the folder", err)
	}
	if err != nil {
		return nil, fail(classOf(err), "open the backup target: %w", err)
	}
	return &folder{root: root, name: name}, nil
}

func openBucket(c *fetch.Client, target, credentials string) (Store, error) {
	b, err := c.Bucket(target, credentials)
	if err != nil {
		return nil, err
	}
	return &bucket{b}, nil
}

func classOf(err error) fetch.Class {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		return e.Class
	}
	return fetch.Network
}
