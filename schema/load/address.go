package load

import (
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

// forcedForm matches an address like s3::https://example.com/bucket/key, whose prefix names the protocol.
var forcedForm = regexp.MustCompile(`^([A-Za-z0-9]+)::(.*)$`)

// address checks an address from which bytes are fetched. No message contains the
// address: it may contain a password or a token.
func (p place) address(text string) {
	prefix, rest := "", text
	if m := forcedForm.FindStringSubmatch(text); m != nil {
		prefix, rest = m[1], m[2]
	}
	u, err := url.ParseRequestURI(rest)
	switch forced := rest != text; {
	case text == "":
		p.report("download URL is not provided", "")
	case err != nil:
		p.report("invalid download URL: invalid URI for request", "write the whole address, like https://example.com/image.qcow2")
	case forced && (prefix != "s3" || u.Scheme != "http" && u.Scheme != "https"):
		p.report(fmt.Sprintf("invalid download URL scheme %q", prefix+"::"), "the only prefix is that of s3::https://…")
	case !slices.Contains(sourceSchemes, u.Scheme):
		p.report(fmt.Sprintf("invalid download URL scheme %q", u.Scheme), "use "+strings.Join(sourceSchemes, ", "))
	case u.User != nil:
		p.report("contains a user", "put user and password into a folder below --secrets-dir, and set credentials to its name")
	case u.Scheme == "file":
		p.file(u)
	case p.host(u, "invalid download URL") && (forced || u.Scheme == "s3"):
		p.object(u)
	}
}

// object checks the address of a file on an S3 server, and reports whether it is valid.
func (p place) object(u *url.URL) bool {
	bucket, key := bucketOf(u), strings.TrimPrefix(u.Path, "/")
	if u.Scheme != "s3" {
		bucket, key, _ = strings.Cut(key, "/")
	}
	switch err := s3utils.CheckValidBucketName(bucket); {
	case err != nil || key == "" && p.at[len(p.at)-1] != "store": // a store may be a whole bucket
		p.report("does not name a bucket and a file in it", "write s3://bucket/path/of/file, or s3::https://host/bucket/path/of/file")
	case u.RawQuery != "":
		p.report("has a query: addresses of S3 have none", "remove the part from ? on")
	default:
		return true
	}
	return false
}

func (p place) file(u *url.URL) {
	switch {
	case u.Host != "" || !path.IsAbs(u.Path):
		p.report("invalid download URL: a file needs an absolute path", "write file:///path/to/image")
	case path.Clean(u.Path) != u.Path:
		p.report("invalid download URL: the path is not clean", "write it without \"..\", \"//\" and a slash at the end")
	}
}

// host checks the host of an address, and reports whether it is valid. Messages begin with the argument what.
func (p place) host(u *url.URL, what string) bool {
	name := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	kind := host.Of(name)
	switch {
	case name == "":
		p.report(what+": it has no host", "write the whole address, like https://example.com/path")
		return false
	case u.Scheme == "s3":
		// The host of s3://bucket/key is a bucket, which object checks.
	case kind != "":
		p.loopback = append(p.loopback, document.Problem{Path: p.at,
			Message: fmt.Sprintf("%s: %s is %s", what, name, kind),
			Hint:    "settings.allowLoopbackSources allows it, for tests and demos"})
	case isUnusualIP(name):
		p.report(fmt.Sprintf("%s: %s is neither a name nor an IP address", what, name), "write a name, or an IP address of four decimal numbers")
		return false
	}
	return true
}

var numeric = regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*$`)

// isUnusualIP reports whether some resolvers read the host as an IP address and Go does
// not: 127.1, 0x7f000001, 2130706433. Such a host would bypass the check of package host.
func isUnusualIP(name string) bool {
	_, err := netip.ParseAddr(name)
	return err != nil && numeric.MatchString(name)
}

var backupSchemes = []string{"s3", "nfs", "vfs", "file"}

const backupForms = "write s3://bucket@region/path, nfs://host:/path, file:///path, or the path of a folder"

// backupURL checks the address of a backup.
func (p place) backupURL(text string) {
	if text == "" {
		p.report("backup URL is not provided", "")
		return
	}
	target, query, _ := strings.Cut(text, "?")
	values, err := url.ParseQuery(query)
	name := values.Get("backingImage")
	switch {
	case !p.backupTarget(target):
	case err != nil || name == "":
		p.report("invalid backup URL: it names no backing image", "end it with ?backingImage=<name>")
	case ident.CheckName(name) != nil:
		p.report(fmt.Sprintf("invalid backup URL: %v", ident.CheckName(name)), "")
	case len(values) > 1 && !strings.HasPrefix(target, "nfs:"): // nfs has options of Longhorn
		p.report("invalid backup URL: its query has other parameters than backingImage", "remove the other parameters")
	}
}

// backupTarget checks the address of a backup store, and reports whether it is valid.
func (p place) backupTarget(text string) bool {
	if path.IsAbs(text) {
		if strings.Contains(text, "?") {
			p.report("invalid backup URL: the path contains a \"?\"", "write file:///path with %3F")
		}
		return !strings.Contains(text, "?")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "":
		p.report("invalid backup URL", backupForms)
	case u.Scheme == "cifs" || u.Scheme == "azblob":
		p.report(fmt.Sprintf("backup URLs of %s:// are not supported", u.Scheme), "copy the backup to a bucket, or mount the share and write the path")
	case !slices.Contains(backupSchemes, u.Scheme):
		p.report(fmt.Sprintf("invalid backup URL scheme %q", u.Scheme), backupForms)
	case u.User != nil && (u.Scheme != "s3" || hasPassword(u.User)): // s3://bucket@region is Longhorn's form
		p.report("contains a user", "put user and password into a folder below --secrets-dir, and set credentials to its name")
	case u.Scheme == "s3" && u.Opaque == "" && s3utils.CheckValidBucketName(bucketOf(u)) != nil: // only the server can check s3::https://host/bucket
		p.report("invalid backup URL: it has no valid name of a bucket", "use 3 to 63 letters, digits, \".\" and \"-\"")
	case u.Scheme == "s3" && u.Opaque == "" && u.Path == "":
		p.report("invalid backup URL: it has no path", "to use the whole bucket, end it with a slash")
	case u.Scheme == "s3":
		return true
	case u.Scheme == "nfs" && u.Hostname() == "":
		p.report("invalid backup URL: it has no host", "write nfs://host:/path")
	case !path.IsAbs(u.Path):
		p.report("invalid backup URL: it has no path", backupForms)
	case u.Scheme != "nfs" && u.Host != "":
		p.report(fmt.Sprintf("invalid backup URL: %s:// is followed by the host %q and not by a path", u.Scheme, u.Host), "write "+u.Scheme+":///path")
	default:
		return true
	}
	return false
}

// bucketOf returns the bucket of s3://bucket/path or s3://bucket@region/path.
func bucketOf(u *url.URL) string {
	if u.User != nil {
		return u.User.Username()
	}
	return u.Host
}

func hasPassword(user *url.Userinfo) bool {
	_, has := user.Password()
	return has
}

// manager checks the address of a node's manager. The schema has already checked its format.
func (p place) manager(text string) {
	if u, err := url.Parse(text); text != "" && (err != nil || u.Hostname() == "") {
		p.report("is not an address", "write an address like http://10.0.0.1:8000")
	}
}

// destination checks an address to which this program sends documents. It returns nil if the address is invalid. No message
// contains the address: it may contain a password or a token.
func (p place) destination(text string, schemes ...string) *url.URL {
	rest, forced := strings.CutPrefix(text, "s3::")
	forced = forced && slices.Contains(schemes, "s3")
	if forced {
		text = rest
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "":
		p.report("is not an address", "write the whole address, like https://example.com/path")
	case !slices.Contains(schemes, u.Scheme) || forced && u.Scheme == "s3":
		p.report("has a scheme that is not supported", "use "+strings.Join(schemes, ", "))
	case u.Host == "":
		p.report("has no host", "write the whole address, like https://example.com/path")
	case u.User != nil && (u.Scheme != "s3" || hasPassword(u.User)): // s3://bucket@region is Longhorn's form
		p.report("contains a user", "put user and password into a folder below --secrets-dir, and set credentials to its name")
	case u.Fragment != "":
		p.report("has a fragment", "remove the part from # on: it is never sent")
	case strings.HasSuffix(u.Path, "/") && slices.Contains(schemes, "s3"):
		p.report("does not name a file", "end it with a name, like /{node}.json")
	case !p.host(u, "invalid URL") || (forced || u.Scheme == "s3") && !p.object(u):
	default:
		return u
	}
	return nil
}
