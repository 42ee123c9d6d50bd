package schema

import (
	"fmt"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

var sourceSchemes = []string{"http", "https", "s3", "file"}

var forcedForm = regexp.MustCompile(`^([A-Za-z0-9]+)::(.*)$`)

// url checks an address that bytes are fetched from. No message has the
// address in it: it may hold a password or a token.
func (d *decoder) url(text string, at document.Path) {
	if text == "" {
		d.fault(at, "download URL is not provided", "")
		return
	}
	forced := forcedForm.FindStringSubmatch(text)
	if forced != nil {
		text = forced[2]
	}
	u, err := url.ParseRequestURI(text)
	if err != nil {
		d.fault(at, "invalid download URL: invalid URI for request", "write it whole, like https://example.com/image.qcow2")
		return
	}
	if forced != nil && (forced[1] != "s3" || u.Scheme != "http" && u.Scheme != "https") {
		d.fault(at, fmt.Sprintf("invalid download URL scheme %q", forced[1]+"::"), "only s3::https://… may have a prefix")
		return
	}
	if !slices.Contains(sourceSchemes, u.Scheme) {
		d.fault(at, fmt.Sprintf("invalid download URL scheme %q", u.Scheme), "use "+strings.Join(sourceSchemes, ", "))
		return
	}
	if u.User != nil {
		d.fault(at, "has a user in it", "put user and password into a folder below --secrets-dir and name it in credentials")
		return
	}
	if u.Scheme == "file" {
		d.file(u, at)
		return
	}
	d.host(u, at)
}

func (d *decoder) file(u *url.URL, at document.Path) {
	switch {
	case u.Host != "" || !path.IsAbs(u.Path):
		d.fault(at, "invalid download URL: a file needs an absolute path", "write file:///path/to/image")
	case path.Clean(u.Path) != u.Path:
		d.fault(at, "invalid download URL: the path is not a plain one", "write it without \"..\", \"//\" and a slash at the end")
	}
}

func (d *decoder) host(u *url.URL, at document.Path) {
	host := strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
	switch {
	case host == "":
		d.fault(at, "invalid download URL: it names no host", "")
	case u.Scheme == "s3":
		// The host of s3://bucket/key is a bucket.
	case local(host):
		d.verdict.loopback = append(d.verdict.loopback, document.Problem{Path: at,
			Message: fmt.Sprintf("invalid download URL: %s is an address of the machine itself or of its link", host),
			Hint:    "settings.allowLoopbackSources allows it, for tests and demos"})
	case oddNumber(host):
		d.fault(at, fmt.Sprintf("invalid download URL: %s is neither a name nor an IP address", host), "write the four numbers in decimal")
	}
}

// local reports whether a host stands for the machine itself or for its link.
func local(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	ip = ip.Unmap()
	return ip.IsLoopback() || ip.IsUnspecified() || ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast()
}

var numeric = regexp.MustCompile(`^(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*$`)

// oddNumber reports whether some resolvers would read an IP address where Go
// reads none: 127.1, 0x7f000001, 2130706433.
func oddNumber(host string) bool {
	_, err := netip.ParseAddr(host)
	return err != nil && numeric.MatchString(host)
}

// packingOf tells the packing by the end of an address's path.
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
		d.fault(at, "backup URL is not provided", "")
		return
	}
	target, query, _ := strings.Cut(text, "?")
	values, err := url.ParseQuery(query)
	name := values.Get("backingImage")
	switch {
	case !d.backupTarget(target, at):
	case err != nil || name == "":
		d.fault(at, "invalid backup URL: it names no backing image", "it has to end in ?backingImage=<name>")
	case disk.CheckName(name) != nil:
		d.fault(at, fmt.Sprintf("invalid backup URL: %v", disk.CheckName(name)), "")
	case len(values) > 1 && !strings.HasPrefix(target, "nfs:"): // whose options are Longhorn's
		d.fault(at, "invalid backup URL: it has more in its query than backingImage", "")
	}
}

// backupTarget checks the address of a backup store, and reports whether it is one.
func (d *decoder) backupTarget(text string, at document.Path) bool {
	if path.IsAbs(text) {
		if strings.Contains(text, "?") {
			d.fault(at, "invalid backup URL: the path has a \"?\" in it", "write file:///path, with %3F for it")
		}
		return !strings.Contains(text, "?")
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme == "":
		d.fault(at, "invalid backup URL", backupForms)
	case u.Scheme == "cifs" || u.Scheme == "azblob":
		d.fault(at, fmt.Sprintf("backup URLs of %s:// are not supported", u.Scheme), "copy the backup to a bucket, or mount the share and give the path")
	case !slices.Contains(backupSchemes, u.Scheme):
		d.fault(at, fmt.Sprintf("invalid backup URL scheme %q", u.Scheme), backupForms)
	case u.User != nil && (u.Scheme != "s3" || withPassword(u.User)): // s3://bucket@region is Longhorn's form
		d.fault(at, "has a user in it", "put user and password into a folder below --secrets-dir and name it in credentials")
	case u.Scheme == "s3":
		return d.bucket(u, at)
	case u.Scheme == "nfs" && u.Hostname() == "":
		d.fault(at, "invalid backup URL: it names no host", "write nfs://host:/path")
	case !path.IsAbs(u.Path):
		d.fault(at, "invalid backup URL: it has no path", backupForms)
	case u.Scheme != "nfs" && u.Host != "":
		d.fault(at, fmt.Sprintf("invalid backup URL: the path of a folder follows %s:// at once, and %q is taken for a host", u.Scheme, u.Host), "write "+u.Scheme+":///path")
	default:
		return true
	}
	return false
}

// bucket checks s3://bucket@region/path; that of s3::https://host/bucket is for the
// server to know.
func (d *decoder) bucket(u *url.URL, at document.Path) bool {
	if u.Opaque != "" {
		return true
	}
	name := u.Host
	if u.User != nil {
		name = u.User.Username()
	}
	switch {
	case len(name) < 3 || len(name) > 63:
		d.fault(at, fmt.Sprintf("invalid backup URL: %q cannot be a bucket, which has 3 to 63 characters", name), "")
	case u.Path == "":
		d.fault(at, "invalid backup URL: it has no path", "end it with a slash for the whole bucket")
	default:
		return true
	}
	return false
}

func withPassword(user *url.Userinfo) bool {
	_, has := user.Password()
	return has
}

// address checks where a node's manager answers. The schema has seen to its form.
func (d *decoder) address(text string) {
	if text == "" {
		return
	}
	if u, err := url.Parse(text); err != nil || u.Hostname() == "" {
		d.fault(document.Path{"address"}, "is not an address", "write it like http://10.0.0.1:8000")
	}
}
