package schema

import (
	"regexp"
	"slices"
	"strings"
)

// Track is where the vendor of an image publishes its versions. One of the first four fields is set.
type Track struct {
	Simplestreams *TrackSimplestreams
	CoreOS        *TrackCoreOS
	Listing       *TrackListing
	HTTP          *TrackHTTP

	Keys      string // name of the folder below --keys-dir with the keys of the lists; "": those of Verify
	Signature string // address of the signature of a list, or its name beside the list, with "{file}"; "": as in Verify
}

// TrackSimplestreams is a product of an image server with simplestreams.
type TrackSimplestreams struct {
	URL     string // of the folder that has streams/v1/index.json
	Product string
	Item    string // key or file type of the file
}

// TrackCoreOS is a stream of Fedora CoreOS.
type TrackCoreOS struct {
	URL      string // of the metadata of the stream
	Arch     string
	Artifact string
	Format   string // "": the only one
}

// TrackListing is a folder on a web server.
type TrackListing struct {
	URL      string
	Match    string // a regular expression with at most one slash and at least one group
	Checksum string // name of the checksum list, with "{file}" for the name of the file
}

// TrackHTTP is the address of the image itself. Download.ChecksumURL is set.
type TrackHTTP struct{}

// coreOSStreams is the folder with the metadata of the streams of Fedora CoreOS.
const coreOSStreams = "https://builds.coreos.fedoraproject.org/streams/"

// track converts and checks a tracker, which finds versions of a download.
func (f fields) track(download *Download) *Track {
	r, declared := f.in("track")
	if !declared || !f.ofDownload(r.place, download, "only a download can be tracked") {
		return nil
	}
	t := &Track{}
	if s, ok := r.in("simplestreams"); ok {
		t.Simplestreams = &TrackSimplestreams{URL: s.webAddress("url"), Product: s.text("product"), Item: s.text("item")}
		t.Keys = s.text("keys")
	}
	if c, ok := r.in("coreos"); ok {
		t.CoreOS = &TrackCoreOS{URL: coreOSStreams + c.text("stream") + ".json", Arch: c.text("arch"), Artifact: c.text("artifact"), Format: c.text("format")}
		if c.trimmed("url") != "" {
			t.CoreOS.URL = c.webAddress("url")
		}
	}
	if l, ok := r.in("listing"); ok {
		t.Listing = &TrackListing{URL: l.webAddress("url"), Match: l.text("match"), Checksum: l.text("checksum")}
		l.of("match").pattern(t.Listing.Match)
		t.Keys, t.Signature = l.signedBy()
	}
	if h, ok := r.in("http"); ok {
		t.HTTP = &TrackHTTP{}
		t.Keys, t.Signature = h.signedBy()
		if download.ChecksumURL == "" {
			h.report("needs source.download.checksumURL", "only a checksum list says which bytes are new")
		}
	}
	return t
}

// ofDownload reports a field of an image that only a download can have. It returns whether the image is a download.
func (f fields) ofDownload(field place, download *Download, hint string) bool {
	other := func(k SourceKind) bool { return !f.lacks("source", string(k)) }
	// Without another source, the source has a mistake, which is reported already.
	if download == nil && slices.ContainsFunc([]SourceKind{KindUpload, KindExportFromVolume, KindRestore, KindClone}, other) {
		field.report("is not used by this kind of source", hint)
	}
	return download != nil
}

// signedBy returns the keys and the signature of a list.
func (f fields) signedBy() (keys, signature string) {
	keys, signature = f.text("keys"), f.text("signature")
	if strings.Contains(signature, "://") {
		f.webAddress("signature")
	}
	if signature != "" && keys == "" {
		f.of("signature").report("has a signature without keys", "write the name of the folder below --keys-dir with the keys of the list")
	}
	return keys, signature
}

// webAddress returns the address of a document, which must be that of a web server.
func (f fields) webAddress(name string) string {
	addr, before := f.trimmed(name), len(f.problems)
	f.of(name).address(addr)
	if len(f.problems) == before && !strings.HasPrefix(addr, "https://") && !strings.HasPrefix(addr, "http://") {
		f.of(name).report("must be an address of a web server", "begin with https://")
	}
	return addr
}

// pattern checks the regular expression of a listing.
func (p place) pattern(match string) {
	folder, file, nested := strings.Cut(match, "/")
	groups := 0
	for _, part := range []string{folder, file} {
		expression, err := regexp.Compile(part)
		if err != nil || strings.Contains(file, "/") {
			p.report("is not a regular expression with at most one slash", "each part beside the slash is a regular expression (RE2) of its own")
			return
		}
		groups += expression.NumSubexp()
	}
	if file == "" && nested {
		p.report("ends with a slash", "add the name of the file in the folder")
	} else if groups == 0 {
		p.report("has no group", "put parentheses around the version")
	}
}
