package backup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Open returns the Store at a target, an address in Longhorn's form:
//
//	s3://bucket@region/path/, s3://bucket/path, s3::https://host/bucket/path
//	nfs://host:/path               a share that is mounted on this machine
//	vfs:///path, file:///path, /path
//
// A folder must exist, and the Client c must be allowed to read it. For a bucket, Open sends no
// request to the server. The Store repeats requests after temporary errors. Errors are *fetch.Error.
// The caller closes the Store.
func Open(c *fetch.Client, target, credentials string) (Store, error) {
	s, err := openStore(c, target, credentials)
	if err != nil {
		return nil, err
	}
	return retryStore{s}, nil
}

func openStore(c *fetch.Client, target, credentials string) (Store, error) {
	if filepath.IsAbs(target) {
		target = filepath.Clean(target)
		return openFolder(c, target, target)
	}
	scheme, _, ok := strings.Cut(target, ":")
	switch {
	case !ok:
		return nil, fetch.Errorf(fetch.BadConfig, "the backup target is not an address: use s3://…, nfs://…, file:///… or an absolute path")
	case scheme == "s3":
		b, err := c.OpenBucket(target, credentials)
		if err != nil {
			return nil, err
		}
		return &bucket{b}, nil
	case scheme == "cifs" || scheme == "azblob":
		return nil, fetch.Errorf(fetch.BadConfig, "backup targets of %s:// are not supported: copy the backup to an S3 bucket, or mount the share and use its path", scheme)
	}
	u, err := url.Parse(target)
	switch {
	case err != nil: // err contains the whole address
		return nil, fetch.Errorf(fetch.BadConfig, "the backup target is not a valid address: use s3://…, nfs://…, file:///… or an absolute path")
	case scheme != "nfs" && scheme != "vfs" && scheme != "file":
		return nil, fetch.Errorf(fetch.BadConfig, "backup targets of %s:// are not supported: use s3, nfs, vfs, file or an absolute path", scheme)
	case u.User != nil:
		return nil, fetch.Errorf(fetch.BadConfig, "the backup target contains a user or password, which %s:// addresses do not support: remove it", scheme)
	case !filepath.IsAbs(u.Path):
		return nil, fetch.Errorf(fetch.BadConfig, "the backup target %s://%s has no path: add the absolute path of the folder", scheme, u.Host)
	case scheme == "nfs":
		return openShare(c, u)
	case u.Host != "" || u.RawQuery != "":
		return nil, fetch.Errorf(fetch.BadConfig, "the backup target is not a path: use %s:///path", scheme)
	}
	path := filepath.Clean(u.Path)
	return openFolder(c, path, path)
}

// openShare opens the folder where a share is mounted. It does not mount the share, because that
// requires root: the operator does it.
func openShare(c *fetch.Client, u *url.URL) (Store, error) {
	share := &share{strings.ToLower(u.Hostname()), filepath.Clean(u.Path)}
	if share.host == "" {
		return nil, fetch.Errorf(fetch.BadConfig, "the backup target nfs://%s has no host: use nfs://HOST:/PATH", u.Path)
	}
	table, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fetch.Errorf(fetch.Network, "read the mounts of this machine: %w", err)
	}
	defer table.Close()
	path, mounted, err := share.mountPoint(table)
	if err != nil {
		return nil, fetch.Errorf(fetch.Network, "read the mounts of this machine: %w", err)
	}
	if !mounted {
		return nil, fetch.Errorf(fetch.Refused, "%v is not mounted on this machine: mount it (mount -t nfs %s:%s /mnt/backups) below a folder that is given with --allow-file-root",
			share, share.host, share.path)
	}
	s, err := openFolder(c, share.String(), path)
	if err != nil {
		return nil, fetch.Errorf(classOf(err), "%v is mounted at %s: %w", share, path, err)
	}
	return s, nil
}

func openFolder(c *fetch.Client, name, path string) (Store, error) {
	root, err := c.OpenFolder(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fetch.Errorf(classOf(err), "open the backup target: %w: mount it there, or create the folder", err)
	}
	if err != nil {
		return nil, fetch.Errorf(classOf(err), "open the backup target: %w", err)
	}
	return &folder{root: root, name: name}, nil
}

func classOf(err error) fetch.Class {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		return e.Class
	}
	return fetch.Network
}

// share is an exported folder of a file server, or a folder below it.
type share struct{ host, path string }

func (s *share) String() string {
	host := s.host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "nfs://" + host + ":" + s.path
}

// mountPoint returns the local path of the share. table has the format of /proc/self/mountinfo.
func (s *share) mountPoint(table io.Reader) (path string, mounted bool, err error) {
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		m, ok := parseMount(lines.Text())
		if !ok {
			continue
		}
		if at, ok := m.path(*s); ok && m.visible() {
			path, mounted = at, true // any mount will do, because all mounts of a share contain the same files
		}
	}
	return path, mounted, lines.Err()
}

// mount is one mount of a share.
type mount struct {
	device string // "major:minor"
	at     string
	share  share
}

// parseMount parses a line of the table. It returns false if the line is not an NFS mount:
//
//	36 35 0:45 / /mnt/backups rw,noatime shared:1 - nfs4 server:/export rw,vers=4.2
func parseMount(line string) (mount, bool) {
	before, after, _ := strings.Cut(line, " - ")
	m, of := strings.Fields(before), strings.Fields(after)
	if len(m) < 6 || len(of) < 2 || of[0] != "nfs" && of[0] != "nfs4" {
		return mount{}, false
	}
	host, exported, ok := strings.Cut(unescape(of[1]), ":/")
	if !ok {
		return mount{}, false
	}
	host = strings.ToLower(strings.Trim(host, "[]"))
	return mount{device: m[2], at: unescape(m[4]), share: share{host, path.Join("/", exported, unescape(m[3]))}}, true
}

// path returns the local path of s. It returns false if the mount does not contain s.
func (m mount) path(s share) (string, bool) {
	rest, ok := strings.CutPrefix(s.path+"/", strings.TrimSuffix(m.share.path, "/")+"/")
	if !ok || m.share.host != s.host {
		return "", false
	}
	return path.Join(m.at, rest), true
}

// visible reports whether no other mount hides this mount.
func (m mount) visible() bool {
	var stat unix.Stat_t
	err := unix.Stat(m.at, &stat)
	return err == nil && m.device == fmt.Sprintf("%d:%d", unix.Major(stat.Dev), unix.Minor(stat.Dev))
}

// unescape decodes the octal escapes for blanks and other characters in the table.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
