package track

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/html"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// listingPattern is a compiled schema.TrackListing.Match.
type listingPattern struct {
	folder *regexp.Regexp // nil: the files are in the folder of the tracker
	file   *regexp.Regexp
	name   string // the pattern of the file if it is a plain name; empty otherwise
}

func parsePattern(match string) (listingPattern, error) {
	var p listingPattern
	folder, file, nested := strings.Cut(match, "/")
	if !nested {
		folder, file = "", match
	}
	var err, err2 error
	if nested {
		p.folder, err = regexp.Compile("^(?:" + folder + ")$")
	}
	p.file, err2 = regexp.Compile("^(?:" + file + ")$")
	if err := errors.Join(err, err2); err != nil || strings.Contains(file, "/") {
		return p, refuse(NothingMatches, "the pattern is not a regular expression with at most one slash: correct match in track")
	}
	if prefix, complete := regexp.MustCompile(file).LiteralPrefix(); complete {
		p.name = prefix
	}
	return p, nil
}

// version returns the version of the file at a path.
func (p listingPattern) version(path string) version {
	elements := strings.Split(path, "/")
	file := elements[len(elements)-1]
	if p.folder == nil {
		return groups(p.file, file)
	}
	if len(elements) < 2 {
		return nil
	}
	v, w := groups(p.folder, elements[len(elements)-2]), groups(p.file, file)
	if v == nil || w == nil {
		return nil
	}
	return append(v, w...)
}

// groups returns the groups of a match, or nil without a match. A pattern without groups has empty versions. A group
// that takes no part in the match is empty.
func groups(pattern *regexp.Regexp, text string) version {
	m := pattern.FindStringSubmatch(text)
	if m == nil {
		return nil
	}
	return append(version{}, m[1:]...)
}

func (r *Resolver) listing(ctx context.Context, t schema.TrackListing, m Image) (Answer, error) {
	p, err := parsePattern(t.Match)
	if err != nil {
		return Answer{}, err
	}
	base, err := parseBase(t.URL)
	if err != nil {
		return Answer{}, err
	}
	names, err := r.names(ctx, t.URL, m.Credentials)
	if err != nil {
		return Answer{}, err
	}
	pinned := p.version(m.path())
	if pinned.String() == "" {
		pinned = nil
	}
	if p.folder == nil {
		return judge(ctx, m, pinned, r.files(t, m, base, p, nil, names))
	}
	var candidates []candidate
	for _, name := range names {
		folder, isFolder := strings.CutSuffix(name, "/")
		v := groups(p.folder, folder)
		if !isFolder || v == nil {
			continue
		}
		candidates = append(candidates, candidate{v, folder, func(ctx context.Context) (found, error) {
			return r.inFolder(ctx, t, m, below(base, name), p, v)
		}})
	}
	return judge(ctx, m, pinned, candidates)
}

// files returns a candidate for each matching name of a file in a folder. parent is the version of the folder.
func (r *Resolver) files(t schema.TrackListing, m Image, folder *url.URL, p listingPattern, parent version, names []string) []candidate {
	var candidates []candidate
	for _, name := range names {
		if v := groups(p.file, name); v != nil {
			v = append(slices.Clone(parent), v...)
			candidates = append(candidates, candidate{v, name, func(ctx context.Context) (found, error) {
				return r.withChecksum(ctx, t, m, folder, name, v)
			}})
		}
	}
	return candidates
}

// inFolder returns the newest matching file in a folder. parent is the version of the folder.
func (r *Resolver) inFolder(ctx context.Context, t schema.TrackListing, m Image, folder *url.URL, p listingPattern, parent version) (found, error) {
	if p.name != "" {
		return r.withChecksum(ctx, t, m, folder, p.name, parent)
	}
	names, err := r.names(ctx, folder.String(), m.Credentials)
	if err != nil {
		return found{}, err
	}
	files := r.files(t, m, folder, p, parent, names)
	slices.SortStableFunc(files, func(a, b candidate) int { return b.version.compare(a.version) })
	switch {
	case len(files) == 0:
		return found{}, errIncomplete
	case len(files) > 1 && files[0].version.compare(files[1].version) == 0:
		return found{}, refuse(Ambiguous, "%s and %s are the same version", files[0].name, files[1].name)
	}
	return files[0].resolve(ctx)
}

// withChecksum returns a file of version v in a folder, with its checksums from the list beside it.
func (r *Resolver) withChecksum(ctx context.Context, t schema.TrackListing, m Image, folder *url.URL, name string, v version) (found, error) {
	list := below(folder, strings.ReplaceAll(t.Checksum, "{file}", name)).String()
	d, err := r.readList(ctx, list, name, m)
	if errors.Is(err, fetch.ErrNoDocument) {
		return found{}, errIncomplete
	}
	if err != nil {
		return found{}, unreadable(err)
	}
	f := found{version: v, url: below(folder, name).String()}
	f.checksums, err = listedChecksums(d.Data, list, f.url, m)
	if e, ok := errors.AsType[*Refusal](err); ok && e.Reason == NoChecksum {
		return f, fmt.Errorf("%w: %w", errIncomplete, e.Err)
	}
	return f, err
}

// names returns the names of the files and folders in a folder. The name of a folder ends with a slash.
func (r *Resolver) names(ctx context.Context, addr, credentials string) ([]string, error) {
	d, err := r.read(ctx, addr, credentials)
	if err != nil {
		return nil, unreadable(err)
	}
	if bytes.HasPrefix(bytes.TrimSpace(d.Data), []byte("{")) {
		return parseNames(d.Data)
	}
	return parseLinks(d.Data, d.From)
}

// parseNames returns the names in a JSON list, as MirrorCache, the server of openSUSE, sends it for "?jsontable".
func parseNames(data []byte) ([]string, error) {
	var table struct{ Data []struct{ Name string } }
	if err := json.Unmarshal(data, &table); err != nil || table.Data == nil || len(table.Data) > maxNames {
		return nil, refuse(Malformed, "the document is not a list of at most %d files", maxNames)
	}
	var names []string
	for _, e := range table.Data {
		if isName(e.Name) {
			names = append(names, e.Name)
		}
	}
	return unique(names), nil
}

// parseLinks returns the names in the links of a web page that lists a folder. from is the address of the page. The text
// of a link is not used, because servers shorten names in it.
func parseLinks(page []byte, from *url.URL) ([]string, error) {
	folder := from.Path[:strings.LastIndexByte(from.Path, '/')+1]
	var names []string
	for z := html.NewTokenizer(bytes.NewReader(page)); z.Next() != html.ErrorToken; {
		if len(names) > maxNames {
			return nil, refuse(Malformed, "the page lists more than %d files", maxNames)
		}
		token := z.Token()
		if token.Type != html.StartTagToken || token.Data != "a" {
			continue
		}
		for _, a := range token.Attr {
			if a.Key == "href" {
				names = append(names, linkName(a.Val, from, folder)...)
			}
		}
	}
	if len(names) == 0 {
		return nil, refuse(Malformed, "the page does not list a folder")
	}
	return unique(names), nil
}

// maxNames limits the files that a page lists.
const maxNames = 100_000

// linkName returns the name of the file or folder that a link leads to, and nothing for any other link.
func linkName(href string, from *url.URL, folder string) []string {
	to, err := from.Parse(strings.TrimSpace(href))
	if err != nil || to.Scheme != from.Scheme || to.Host != from.Host || to.User != nil || strings.ContainsAny(href, "?#") {
		return nil
	}
	name, ok := strings.CutPrefix(to.Path, folder)
	if !ok || !isName(strings.TrimSuffix(name, "/")) {
		return nil
	}
	return []string{name}
}

// isName reports whether a text is the name of a file in a folder.
func isName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, `/\`) && isPlain(s)
}

func unique(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
