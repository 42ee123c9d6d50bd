package track

import (
	"context"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// streamsIndex is streams/v1/index.json.
type streamsIndex struct {
	Format string
	Index  map[string]struct {
		DataType, Format, Path string
		Products               []string
	}
}

// streamsProduct is a product of a product file.
type streamsProduct struct {
	Versions map[string]struct {
		Items map[string]streamsItem
	}
}

type streamsItem struct {
	FileType string `json:"ftype"`
	Path     string
	SHA256   string
}

func (r *Resolver) simplestreams(ctx context.Context, t schema.TrackSimplestreams, m Image) (Answer, error) {
	base, err := parseBase(t.URL)
	if err != nil {
		return Answer{}, err
	}
	index, err := r.readStreams(ctx, base, "streams/v1/index.json", m)
	if err != nil {
		return Answer{}, unreadable(err)
	}
	file, err := parseStreamsIndex(index.Data, t.Product)
	if err != nil {
		return Answer{}, err
	}
	products, err := r.readStreams(ctx, base, file, m)
	if err != nil {
		return Answer{}, unreadable(err)
	}
	all, err := products.products()
	if err != nil {
		return Answer{}, err
	}
	versions, err := parseStreamsVersions(all, t.Product)
	if err != nil {
		return Answer{}, err
	}
	return judge(ctx, m, pinnedSerial(m, versions, t.Item), streamsCandidates(base, versions, t.Item, m.Unpack))
}

// readStreams returns the document at a path. If lists must be signed, it reads only the clearsigned .sjson file in
// place of the .json file.
func (r *Resolver) readStreams(ctx context.Context, base *url.URL, file string, m Image) (*doc, error) {
	if m.Verify != nil {
		file = strings.TrimSuffix(strings.TrimSuffix(file, ".json"), ".sjson") + ".sjson"
		embedded := *m.Verify // its SignatureURL belongs to another list
		embedded.SignatureURL = ""
		m.Verify = &embedded
	}
	return r.readList(ctx, below(base, file).String(), "", m)
}

// parseStreamsIndex returns the path of the product file with a product.
func parseStreamsIndex(data []byte, product string) (string, error) {
	var index streamsIndex
	if err := json.Unmarshal(data, &index); err != nil || index.Format != "index:1.0" {
		return "", refuse(Malformed, "the index is not a simplestreams index")
	}
	var paths []string
	for _, e := range index.Index {
		if e.DataType == "image-downloads" && e.Format == "products:1.0" && slices.Contains(e.Products, product) {
			paths = append(paths, e.Path)
		}
	}
	slices.Sort(paths)
	switch {
	case len(paths) == 0:
		return "", refuse(NothingMatches, "the index has no product %q: correct the field track", product)
	case len(slices.Compact(paths)) > 1:
		return "", refuse(Ambiguous, "the index has several files with the product %q", product)
	}
	return paths[0], checkPath(paths[0])
}

// checkPath returns an error unless a path from a document leads to a file below the folder of the tracker.
func checkPath(p string) error {
	if p == "" || strings.HasPrefix(p, "/") || path.Clean(p) != p || p == ".." || strings.HasPrefix(p, "../") {
		return refuse(ForeignAddress, "the path %q is not below the address of the tracker", p)
	}
	if u, err := url.Parse(p); err == nil && u.Host != "" || strings.Contains(p, `\`) || !isPlain(p) {
		return refuse(ForeignAddress, "the path %q is not below the address of the tracker", p)
	}
	return nil
}

// maxName limits the length of a name or a path in a document, in bytes.
const maxName = 1024

// isPlain reports whether a text is not too long, and has only characters that an address may have in a configuration file.
func isPlain(s string) bool {
	return len(s) <= maxName && !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f || c == 0xfffd })
}

// streamsVersion is a version of a product.
type streamsVersion struct {
	serial string
	items  map[string]streamsItem
}

// parseStreamsProducts returns the products of a product file by name.
func parseStreamsProducts(data []byte) (map[string]json.RawMessage, error) {
	var file struct {
		Format   string
		Products map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &file); err != nil || file.Format != "products:1.0" {
		return nil, errNoProducts
	}
	return file.Products, nil
}

var errNoProducts = refuse(Malformed, "the product file is not a simplestreams product file")

// parseStreamsVersions returns the versions of a product, the newest first.
func parseStreamsVersions(products map[string]json.RawMessage, name string) ([]streamsVersion, error) {
	var product streamsProduct
	if data, ok := products[name]; ok && json.Unmarshal(data, &product) != nil {
		return nil, errNoProducts
	}
	var versions []streamsVersion
	for serial, v := range product.Versions {
		if len(serial) > maxVersion {
			return nil, errNoProducts
		}
		versions = append(versions, streamsVersion{serial, v.Items})
	}
	slices.SortFunc(versions, func(a, b streamsVersion) int {
		if c := comparePart(b.serial, a.serial); c != 0 {
			return c
		}
		return strings.Compare(a.serial, b.serial)
	})
	if len(versions) == 0 {
		return nil, refuse(NothingMatches, "the product %q has no versions", name)
	}
	return versions, nil
}

// item returns the item with a name: the name is its key, or else its file type. If there is no such item, the path of
// the result is empty.
func (v streamsVersion) item(name string) (streamsItem, error) {
	if item, ok := v.items[name]; ok {
		return item, nil
	}
	var same []streamsItem
	for _, item := range v.items {
		if item.FileType == name {
			same = append(same, item)
		}
	}
	switch len(same) {
	case 0:
		return streamsItem{}, nil
	case 1:
		return same[0], nil
	}
	return streamsItem{}, refuse(Ambiguous, "%s has several items of the type %q", v.serial, name)
}

// pinnedSerial returns the version of the declared address, or nil if it is unknown.
func pinnedSerial(m Image, versions []streamsVersion, name string) version {
	declared := m.path()
	for _, v := range versions {
		if item, err := v.item(name); err == nil && item.Path != "" && strings.HasSuffix(declared, "/"+item.Path) {
			return version{v.serial}
		}
	}
	for _, v := range versions {
		if item, err := v.item(name); err == nil {
			if serial, ok := versionIn(declared, item.Path, v.serial); ok {
				return version{serial}
			}
		}
	}
	return nil
}

func streamsCandidates(base *url.URL, versions []streamsVersion, name, unpack string) []candidate {
	all := make([]candidate, 0, len(versions))
	for _, v := range versions {
		all = append(all, candidate{version{v.serial}, v.serial, func(context.Context) (found, error) {
			item, err := v.item(name)
			if err != nil {
				return found{}, err
			}
			if item.Path == "" || item.SHA256 == "" {
				return found{}, errIncomplete
			}
			f := found{version: version{v.serial}, url: below(base, item.Path).String()}
			if err := checkPath(item.Path); err != nil {
				return f, err
			}
			if f.checksums, err = parseChecksum(ident.SHA256, item.SHA256); (fetch.Request{URL: f.url, Unpack: unpack}).IsPacked() {
				f.checksums = nil
			}
			return f, err
		}})
	}
	return all
}
