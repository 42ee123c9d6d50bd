package fetch

import (
	"context"
	"errors"
	"net/url"
	"strings"

	getter "github.com/hashicorp/go-getter/v2"
)

// scheme is a getter of go-getter for the addresses of one kind. It gets files
// only, and not to where go-getter thinks but where read puts them.
type scheme struct {
	names string // separated by spaces
	force string // what may stand before "::"
	taken *bool  // set once a getter took the address
	read  func(context.Context) error
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
			scheme{"s3", "s3", &taken, from(t.s3)},
			scheme{"http https", "", &taken, from(t.http)},
			scheme{"file", "", &taken, from(t.file)},
		},
		Decompressors:   map[string]getter.Decompressor{},
		DisableSymlinks: true,
	}
	_, err := client.Get(ctx, &getter.Request{Src: a.grammar(), GetMode: getter.ModeFile})
	if err != nil && !taken {
		return failf(Config, "address %s is not supported", a)
	}
	return err
}

// Detect reports whether the getter is the one for the address.
func (s scheme) Detect(r *getter.Request) (bool, error) {
	if r.Forced != "" {
		return r.Forced == s.force, nil
	}
	name, _, ok := strings.Cut(r.Src, "://")
	return ok && strings.Contains(" "+s.names+" ", " "+strings.ToLower(name)+" "), nil
}

// GetFile has the source at the address read.
func (s scheme) GetFile(ctx context.Context, _ *getter.Request) error {
	*s.taken = true
	return s.read(ctx)
}

// Get refuses folders: an image is a file.
func (s scheme) Get(context.Context, *getter.Request) error {
	return errors.New("a folder is not an image")
}

// Mode is asked of addresses that may be folders; ours never are.
func (s scheme) Mode(context.Context, *url.URL) (getter.Mode, error) { return getter.ModeFile, nil }
