package schema

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/minio/minio-go/v7/pkg/s3utils"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/host"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var sourceSchemes = []string{"http", "https", "s3", "file"}

var forcedForm = regexp.MustCompile(`^([A-Za-z0-9]+)::(.*)$`)

// url checks an address from which bytes are fetched. No message contains the
// address: it may contain a password or a token.
func (d *decoder) url(text string, at document.Path) {
	if text == "" {
		d.report(at, "download URL is not provided", "")
		return
	}
	forced := forcedForm.FindStringSubmatch(text)
	if forced != nil {
		text = forced[2]
	}
	u, err := url.ParseRequestURI(text)
	if err != nil {
		d.report(at, "invalid download URL: invalid URI for request", "write the whole address, like https://example.com/image.qcow2")
		return
	}
	if forced != nil && (forced[1] != "s3" || u.Scheme != "http" && u.Scheme != "https") {
		d.report(at, fmt.Sprintf("invalid download URL scheme %q", forced[1]+"::"), "the only prefix is that of s3::https://…")
		return
	}
	if !slices.Contains(sourceSchemes, u.Scheme) {
		d.report(at, fmt.Sprintf("invalid download URL scheme %q", u.Scheme), "use "+strings.Join(sourceSchemes, ", "))
		return
	}
	if u.User != nil {
		d.report(at, "contains a user", "put user and password into a folder below --secrets-dir, and set credentials to its name")
		return
	}
	if u.Scheme == "file" {
		d.file(u, at)
		return
	}
	if d.host(u, at, "invalid download URL") && (forced != nil || u.Scheme == "s3") {
		d.object(u, at)
	}
}

// object checks the address of a file on an S3 server, and reports whether it is one.
func (d *decoder) object(u *url.URL, at document.Path) bool {
	bucket, key := cmp.Or(u.User.Username(), u.Host), strings.TrimPrefix(u.Path, "/")
	if u.Scheme != "s3" {
		bucket, key, _ = strings.Cut(key, "/")
	}
	switch err := s3utils.CheckValidBucketName(bucket); {
	case err != nil || key == "" && at[len(at)-1] != "store": // a store may be a whole bucket
		d.report(at, "does not name a bucket and a file in it", "write s3://bucket/path/of/file, or s3::https://host/bucket/path/of/file")
	case u.RawQuery != "":
		d.report(at, "has a query: addresses of S3 have none", "")
	default:
		return true
	}
	return false
}

func (d *decoder) file(u *url.URL, at document.Path) {
	switch {
	case u.Host != "" || !path.IsAbs(u.Path):
		d.report(at, "invalid download URL: a file needs an absolute path", "write file:///path/to/image")
	case path.Clean(u.Path) != u.Path:
		d.report(at, "invalid download URL: the path is not clean", "write it without \"..\", \"//\" and a slash at the end")
	}
}

// host checks the host of an address, and reports whether it is one. The messages begin with what.
func (d *decoder) host(u *url.URL, at document.Path, what string) bool {
	name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	kind := host.Of(name)
	switch {
	case name == "":
		d.report(at, what+": it has no host", "")
		return false
	case u.Scheme == "s3":
		// The host of s3://bucket/key is a bucket.
	case kind != "":
		d.result.loopback = append(d.result.loopback, document.Problem{Path: at,
			Message: fmt.Sprintf("%s: %s is %s", what, name, kind),
			Hint:    "settings.allowLoopbackSources allows it, for tests and demos"})
	case isUnusualIP(name):
		d.report(at, fmt.Sprintf("%s: %s is neither a name nor an IP address", what, name), "write four decimal numbers")
		return false
	}
	return true
}

var numeric = regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*$`)

// isUnusualIP reports whether some resolvers read the host as an IP address and Go does
// not: 127.1, 0x7f000001, 2130706433. Such a host would avoid the check of package host.
func isUnusualIP(name string) bool {
	_, err := netip.ParseAddr(name)
	return err != nil && numeric.MatchString(name)
}

// packingOf returns the packing by the extension of an address's path.
func packingOf(text string) Unpack {
	if m := forcedForm.FindStringSubmatch(text); m != nil {
		text = m[2]
	}
	u, err := url.Parse(text)
	if err != nil {
		return UnpackNone
	}
	switch strings.ToLower(path.Ext(u.Path)) {
	case ".gz":
		return UnpackGzip
	case ".xz":
		return UnpackXZ
	case ".zst":
		return UnpackZstd
	case ".bz2":
		return UnpackBzip2
	}
	return UnpackNone
}

var backupSchemes = []string{"s3", "nfs", "vfs", "file"}

const backupForms = "write s3://bucket@region/path, nfs://host:/path, file:///path, or the path of a folder"

// backupURL checks the address of a backup.
func (d *decoder) backupURL(text string) {
	at := document.Path{"source", "restore", "backupURL"}
	if text == "" {
		d.report(at, "backup URL is not provided", "")
		return
	}
	target, query, _ := strings.Cut(text, "?")
	values, err := url.ParseQuery(query)
	name := values.Get("backingImage")
	switch {
	case !d.backupTarget(target, at):
	case err != nil || name == "":
		d.report(at, "invalid backup URL: it names no backing image", "end it with ?backingImage=<name>")
	case ident.CheckName(name) != nil:
		d.report(at, fmt.Sprintf("invalid backup URL: %v", ident.CheckName(name)), "")
	case len(values) > 1 && !strings.HasPrefix(target, "nfs:"): // nfs has options of Longhorn
		d.report(at, "invalid backup URL: its query has more than backingImage", "")
	}
}

// backupTarget checks the address of a backup store, and reports whether it is one.
func (d *decoder) backupTarget(text string, at document.Path) bool {
	if path.IsAbs(text) {
		if strings.Contains(text, "?") {
			d.report(at, "invalid backup URL: the path contains a \"?\"", "write file:///path with %3F")
		}
		return !strings.Contains(text, "?")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "":
		d.report(at, "invalid backup URL", backupForms)
	case u.Scheme == "cifs" || u.Scheme == "azblob":
		d.report(at, fmt.Sprintf("backup URLs of %s:// are not supported", u.Scheme), "copy the backup to a bucket, or mount the share and write the path")
	case !slices.Contains(backupSchemes, u.Scheme):
		d.report(at, fmt.Sprintf("invalid backup URL scheme %q", u.Scheme), backupForms)
	case u.User != nil && (u.Scheme != "s3" || hasPassword(u.User)): // s3://bucket@region is Longhorn's form
		d.report(at, "contains a user", "put user and password into a folder below --secrets-dir, and set credentials to its name")
	case u.Scheme == "s3":
		return d.bucket(u, at)
	case u.Scheme == "nfs" && u.Hostname() == "":
		d.report(at, "invalid backup URL: it has no host", "write nfs://host:/path")
	case !path.IsAbs(u.Path):
		d.report(at, "invalid backup URL: it has no path", backupForms)
	case u.Scheme != "nfs" && u.Host != "":
		d.report(at, fmt.Sprintf("invalid backup URL: %s:// is followed by the host %q and not by a path", u.Scheme, u.Host), "write "+u.Scheme+":///path")
	default:
		return true
	}
	return false
}

// bucket checks s3://bucket@region/path. Only the server can check the bucket of
// s3::https://host/bucket.
func (d *decoder) bucket(u *url.URL, at document.Path) bool {
	if u.Opaque != "" {
		return true
	}
	name := u.Host
	if u.User != nil {
		name = u.User.Username()
	}
	switch {
	case s3utils.CheckValidBucketName(name) != nil:
		d.report(at, "invalid backup URL: it has no valid name of a bucket", "use 3 to 63 letters, digits, \".\" and \"-\"")
	case u.Path == "":
		d.report(at, "invalid backup URL: it has no path", "to use the whole bucket, end it with a slash")
	default:
		return true
	}
	return false
}

func hasPassword(user *url.Userinfo) bool {
	_, has := user.Password()
	return has
}

// address checks the address of a node's manager. The schema has checked its format.
func (d *decoder) address(text string) {
	if text == "" {
		return
	}
	if u, err := url.Parse(text); err != nil || u.Hostname() == "" {
		d.report(document.Path{"address"}, "is not an address", "write an address like http://10.0.0.1:8000")
	}
}
