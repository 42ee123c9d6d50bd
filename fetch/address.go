package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"

	getter "github.com/hashicorp/go-getter/v2"
)

// address is one parsed address of a file.
type address struct {
	raw    string // as declared
	force  string // the prefix before "::": "" or "s3"
	url    *url.URL
	region string // region of the bucket, if the address contains one
}

var forcedPattern = regexp.MustCompile(`^([A-Za-z0-9]+)::(.+)$`)

// parseAddress parses an absolute URL, or "s3::" before the https URL of an S3 server. This is a subset of
// go-getter's grammar: other prefixes are rejected, and getterURL hides path and query from go-getter, so that the
// server receives them unchanged. The validation of a configuration (schema/load/address.go) rejects at least what
// parseAddress and newS3Source reject.
func parseAddress(raw string) (address, error) {
	a := address{raw: strings.TrimSpace(raw)}
	rest := a.raw
	if m := forcedPattern.FindStringSubmatch(rest); m != nil {
		a.force, rest = m[1], m[2]
	}
	u, err := url.Parse(rest)
	if err != nil {
		return a, Errorf(BadConfig, "address is not a URL: write it like https://example.com/path") // err contains the whole address
	}
	a.url = u
	if err := a.check(); err != nil {
		return a, err
	}
	return a, nil
}

// check returns an error if no getter of this package supports the address.
func (a address) check() error {
	u := a.url
	switch {
	case a.raw == "":
		return Errorf(BadConfig, "address is empty")
	case u.Scheme == "":
		return Errorf(BadConfig, "address %q has no scheme: begin with https://", redact(u))
	case a.force != "" && a.force != "s3":
		return Errorf(BadConfig, "address begins with %q: only s3:: is supported", a.force+"::")
	case a.force != "" && u.Scheme != "https" && u.Scheme != "http":
		return Errorf(BadConfig, "scheme %q is not supported after s3::, begin with s3::https://", u.Scheme)
	case a.force == "" && !supported(u.Scheme):
		return Errorf(BadConfig, "scheme %q is not supported: use https, http, s3 or file", u.Scheme)
	case u.User != nil:
		return Errorf(BadConfig, "address %s contains a user or password: move them to a credentials folder", redact(u))
	case u.Opaque != "" || u.Path == "" && (u.Scheme == "file" || u.Scheme == "s3"):
		return Errorf(BadConfig, "address %s has no path: write the path of the file", redact(u))
	case u.Scheme == "file" && u.Host != "" && u.Host != "localhost":
		return Errorf(BadConfig, "address %s has a host: use file:/// and an absolute path", redact(u))
	case u.Scheme != "file" && u.Hostname() == "":
		return Errorf(BadConfig, "address %s has no host: write it like https://example.com/path", redact(u))
	}
	return nil
}

func supported(scheme string) bool {
	switch scheme {
	case "http", "https", "file", "s3":
		return true
	}
	return false
}

// getterURL returns what go-getter needs to select a getter: the address without path and query, in which
// go-getter would interpret "//", "checksum" and "archive".
func (a address) getterURL() string {
	return address{force: a.force, url: &url.URL{Scheme: a.url.Scheme, Host: a.url.Host, Path: "/"}}.String()
}

// id returns a hash that identifies the address in a disk.PartSource without revealing it.
func (a address) id() string {
	sum := sha256.Sum256([]byte(a.raw))
	return hex.EncodeToString(sum[:16])
}

// addressIDPattern distinguishes ids of addresses from other values of disk.PartSource.ID.
var addressIDPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// String returns the address without secrets, for messages.
func (a address) String() string {
	prefix := ""
	if a.force != "" {
		prefix = a.force + "::"
	}
	return prefix + redact(a.url)
}

// base returns the last element of the path: the name of the file.
func (a address) base() string { return path.Base(a.url.Path) }

// redact returns u without user, password, query and fragment, which may be secret. Unlike
// text.RedactURL, it takes a parsed address and keeps the escapes of the path.
func redact(u *url.URL) string {
	if u.Opaque != "" {
		return fmt.Sprintf("%s:…", u.Scheme)
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.String()
}

// schemeGetter implements the Getter interface of go-getter for the addresses of one scheme. It calls
// read, and ignores the destination of the request.
type schemeGetter struct {
	names    string // schemes, separated by spaces
	force    string // the prefix before "::" that selects this getter
	selected *bool  // set to true when any getter is selected
	read     func(context.Context) error
}

// dispatch uses go-getter to select the getter for address a, and calls read with its source. It uses
// only the getters of this package. The decompressors, checksums, subfolders and symbolic links of
// go-getter are never used: parseAddress rejects or hides the syntax that requests them.
func (t *transfer) dispatch(ctx context.Context, a address, read func(context.Context, source) error) error {
	selected := false
	from := func(open func(address) (source, error)) func(context.Context) error {
		return func(ctx context.Context) error {
			src, err := open(a)
			if err != nil {
				return err
			}
			return read(ctx, src)
		}
	}
	client := getter.Client{
		Getters: []getter.Getter{
			schemeGetter{"s3", "s3", &selected, from(t.newS3Source)},
			schemeGetter{"http https", "", &selected, from(t.newHTTPSource)},
			schemeGetter{"file", "", &selected, from(t.newFileSource)},
		},
		Decompressors:   map[string]getter.Decompressor{},
		DisableSymlinks: true,
	}
	_, err := client.Get(ctx, &getter.Request{Src: a.getterURL(), GetMode: getter.ModeFile})
	if err != nil && !selected {
		return Errorf(BadConfig, "address %s is not supported", a)
	}
	return err
}

// Detect reports whether the getter supports the address.
func (s schemeGetter) Detect(r *getter.Request) (bool, error) {
	if r.Forced != "" {
		return r.Forced == s.force, nil
	}
	name, _, ok := strings.Cut(r.Src, "://")
	return ok && strings.Contains(" "+s.names+" ", " "+strings.ToLower(name)+" "), nil
}

// GetFile calls read.
func (s schemeGetter) GetFile(ctx context.Context, _ *getter.Request) error {
	*s.selected = true
	return s.read(ctx)
}

// Get returns an error: go-getter calls it for folders, and an image is a file.
func (s schemeGetter) Get(context.Context, *getter.Request) error {
	return errors.New("a folder is not an image")
}

// Mode reports that every address is a file.
func (s schemeGetter) Mode(context.Context, *url.URL) (getter.Mode, error) {
	return getter.ModeFile, nil
}
