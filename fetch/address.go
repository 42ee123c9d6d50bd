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

// address is one declared place that bytes come from.
type address struct {
	raw    string // as declared
	force  string // what stood before "::", "" or "s3"
	url    *url.URL
	region string // of a bucket, where the address names it
}

var forcedPattern = regexp.MustCompile(`^([A-Za-z0-9]+)::(.+)$`)

// parseAddress reads an address in go-getter's grammar, as far as we speak it:
// an absolute URL, with "s3::" before it where https means S3. What go-getter
// would give a meaning of its own beyond that is refused ("//" in a path, other
// prefixes), or kept from it (the query, which reaches the server as it stands).
func parseAddress(raw string) (address, error) {
	a := address{raw: strings.TrimSpace(raw)}
	rest := a.raw
	if m := forcedPattern.FindStringSubmatch(rest); m != nil {
		a.force, rest = m[1], m[2]
	}
	u, err := url.Parse(rest)
	if err != nil {
		return a, failf(BadConfig, "address is not a URL") // the cause would print it whole
	}
	a.url = u
	if err := a.check(); err != nil {
		return a, err
	}
	return a, nil
}

// check refuses what no getter of ours would take, with the reason.
func (a address) check() error {
	u := a.url
	switch {
	case a.raw == "":
		return failf(BadConfig, "address is empty")
	case u.Scheme == "":
		return failf(BadConfig, "address %q has no scheme: begin with https://", redact(u))
	case a.force != "" && a.force != "s3":
		return failf(BadConfig, "address begins with %q: only s3:: is supported", a.force+"::")
	case a.force == "" && !supported(u.Scheme):
		return failf(BadConfig, "scheme %q is not supported: use https, http, s3 or file", u.Scheme)
	case u.User != nil:
		return failf(BadConfig, "address %s holds a user or password: put them into a credentials folder", redact(u))
	case u.Opaque != "" || !strings.HasPrefix(u.Path, "/"):
		return failf(BadConfig, "address %s has no path", redact(u))
	case strings.Contains(u.EscapedPath(), "//"):
		return failf(BadConfig, "address %s has \"//\" in its path: a sub-folder of a source is not supported", redact(u))
	case u.Scheme == "file" && u.Host != "" && u.Host != "localhost":
		return failf(BadConfig, "address %s names a host: write file:/// and an absolute path", redact(u))
	case u.Scheme != "file" && u.Hostname() == "":
		return failf(BadConfig, "address %s has no host", redact(u))
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

// getterURL is what go-getter is asked to dispatch: the address without the query,
// in which it would find "checksum" and "archive" and act on them.
func (a address) getterURL() string {
	prefix := ""
	if a.force != "" {
		prefix = a.force + "::"
	}
	return prefix + redact(a.url)
}

// id identifies the address to a disk.PartSource without telling it.
func (a address) id() string {
	sum := sha256.Sum256([]byte(a.raw))
	return hex.EncodeToString(sum[:16])
}

// addressIDPattern tells addresses from the other sources that parts come from.
var addressIDPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)

// String returns what may be printed of the address.
func (a address) String() string { return a.getterURL() }

// base is the last element of the path: the name of the file.
func (a address) base() string { return path.Base(a.url.Path) }

// redact returns u without what may be secret in it.
func redact(u *url.URL) string {
	if u.Opaque != "" {
		return fmt.Sprintf("%s:…", u.Scheme)
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.String()
}

// schemeGetter is a getter of go-getter for the addresses of one kind. It gets files
// only, and not to where go-getter thinks but where read puts them.
type schemeGetter struct {
	names    string // separated by spaces
	force    string // what may stand before "::"
	selected *bool  // set once a getter took the address
	read     func(context.Context) error
}

// dispatch has go-getter choose among our getters, and no others, the one that the
// address a is for. Decompressors, checksums, sub-folders and symbolic links of
// go-getter are out of the way: parseAddress refuses or hides what calls for them.
func (t *transfer) dispatch(ctx context.Context, a address, read func(context.Context, source) error) error {
	taken := false
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
			schemeGetter{"s3", "s3", &taken, from(t.newS3Source)},
			schemeGetter{"http https", "", &taken, from(t.newHTTPSource)},
			schemeGetter{"file", "", &taken, from(t.newFileSource)},
		},
		Decompressors:   map[string]getter.Decompressor{},
		DisableSymlinks: true,
	}
	_, err := client.Get(ctx, &getter.Request{Src: a.getterURL(), GetMode: getter.ModeFile})
	if err != nil && !taken {
		return failf(BadConfig, "address %s is not supported", a)
	}
	return err
}

// Detect reports whether the getter is the one for the address.
func (s schemeGetter) Detect(r *getter.Request) (bool, error) {
	if r.Forced != "" {
		return r.Forced == s.force, nil
	}
	name, _, ok := strings.Cut(r.Src, "://")
	return ok && strings.Contains(" "+s.names+" ", " "+strings.ToLower(name)+" "), nil
}

// GetFile has the source at the address read.
func (s schemeGetter) GetFile(ctx context.Context, _ *getter.Request) error {
	*s.selected = true
	return s.read(ctx)
}

// Get refuses folders: an image is a file.
func (s schemeGetter) Get(context.Context, *getter.Request) error {
	return errors.New("a folder is not an image")
}

// Mode is asked of addresses that may be folders; ours never are.
func (s schemeGetter) Mode(context.Context, *url.URL) (getter.Mode, error) {
	return getter.ModeFile, nil
}
