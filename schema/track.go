package schema

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
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

// track checks a tracker, which finds versions of a download.
func (d *decoder) track(raw *rawTrack, download *Download) *Track {
	if raw == nil {
		return nil
	}
	at := document.Path{"track"}
	if download == nil {
		if !d.hasOtherSource() {
			return nil
		}
		d.report(at, "is not used by this kind of source", "only a download can be tracked")
		return nil
	}
	t := &Track{}
	switch {
	case raw.Simplestreams != nil:
		t.Keys = raw.Simplestreams.Keys
		t.Simplestreams = &TrackSimplestreams{strings.TrimSpace(raw.Simplestreams.URL), raw.Simplestreams.Product, raw.Simplestreams.Item}
		d.trackedURL(t.Simplestreams.URL, at.With("simplestreams").With("url"))
	case raw.CoreOS != nil:
		c := raw.CoreOS
		t.CoreOS = &TrackCoreOS{cmp.Or(strings.TrimSpace(c.URL), coreOSStreams+c.Stream+".json"), c.Arch, c.Artifact, c.Format}
		d.trackedURL(t.CoreOS.URL, at.With("coreos").With("url"))
	case raw.Listing != nil:
		t.Listing = &TrackListing{strings.TrimSpace(raw.Listing.URL), raw.Listing.Match, raw.Listing.Checksum}
		d.trackedURL(t.Listing.URL, at.With("listing").With("url"))
		d.pattern(raw.Listing.Match, at.With("listing").With("match"))
		at = at.With("listing")
		t.Keys, t.Signature = raw.Listing.Keys, raw.Listing.Signature
	case raw.HTTP != nil:
		t.HTTP = &TrackHTTP{}
		at = at.With("http")
		t.Keys, t.Signature = raw.HTTP.Keys, raw.HTTP.Signature
		if download.ChecksumURL == "" {
			d.report(at, "needs source.download.checksumURL", "only a checksum list says which bytes are new")
		}
	}
	if strings.Contains(t.Signature, "://") {
		d.trackedURL(t.Signature, at.With("signature"))
	}
	if t.Signature != "" && t.Keys == "" {
		d.report(at.With("signature"), "has a signature without keys", "write the name of the folder below --keys-dir with the keys of the list")
	}
	return t
}

// trackedURL checks the address of a document, which must be that of a web server.
func (d *decoder) trackedURL(addr string, at document.Path) {
	before := len(d.result.problems)
	d.url(addr, at)
	if len(d.result.problems) == before && !strings.HasPrefix(addr, "https://") && !strings.HasPrefix(addr, "http://") {
		d.report(at, "must be an address of a web server", "begin with https://")
	}
}

// pattern checks the regular expression of a listing.
func (d *decoder) pattern(match string, at document.Path) {
	folder, file, nested := strings.Cut(match, "/")
	groups := 0
	for _, part := range []string{folder, file} {
		p, err := regexp.Compile(part)
		if err != nil || strings.Contains(file, "/") {
			d.report(at, "is not a regular expression with at most one slash", "each part beside the slash is a regular expression (RE2) of its own")
			return
		}
		groups += p.NumSubexp()
	}
	if file == "" && nested {
		d.report(at, "ends with a slash", "add the name of the file in the folder")
	} else if groups == 0 {
		d.report(at, "has no group", "put parentheses around the version")
	}
}
