package load

import (
	"regexp"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// coreOSStreams is the folder with the metadata of the streams of Fedora CoreOS.
const coreOSStreams = "https://builds.coreos.fedoraproject.org/streams/"

// track converts and checks a tracker, which finds versions of a download.
func (f fields) track(download *schema.Download) *schema.Track {
	r, declared := f.in("track")
	if !declared || !f.ofDownload(r.place, download, "only a download can be tracked") {
		return nil
	}
	t := &schema.Track{}
	if s, ok := r.in("simplestreams"); ok {
		t.Simplestreams = &schema.TrackSimplestreams{URL: s.webAddress("url"), Product: s.text("product"), Item: s.text("item")}
		t.Keys = s.text("keys")
	}
	if c, ok := r.in("coreos"); ok {
		t.CoreOS = &schema.TrackCoreOS{URL: coreOSStreams + c.text("stream") + ".json", Arch: c.text("arch"), Artifact: c.text("artifact"), Format: c.text("format")}
		if c.trimmed("url") != "" {
			t.CoreOS.URL = c.webAddress("url")
		}
	}
	if l, ok := r.in("listing"); ok {
		t.Listing = &schema.TrackListing{URL: l.webAddress("url"), Match: l.text("match"), Checksum: l.text("checksum")}
		l.of("match").pattern(t.Listing.Match)
		t.Keys, t.Signature = l.signedBy()
	}
	if h, ok := r.in("http"); ok {
		t.HTTP = &struct{}{}
		t.Keys, t.Signature = h.signedBy()
		if download.ChecksumURL == "" {
			h.report("needs source.download.checksumURL", "only a checksum list says which bytes are new")
		}
	}
	return t
}

// ofDownload returns whether the image is a download. If it has another source, ofDownload reports a field that only a
// download can have.
func (f fields) ofDownload(field place, download *schema.Download, hint string) bool {
	other := func(source string) bool { return source != string(schema.KindDownload) && !f.lacks("source", source) }
	// Without any kind of source, the source has a mistake, which is reported already.
	if download == nil && slices.ContainsFunc(f.spec.field("source").names, other) {
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
		f.of("signature").report("needs keys", "set keys to the name of the folder below --keys-dir with the keys of the list")
	}
	return keys, signature
}

// webAddress returns the address in a field, and reports a problem if it is not the address of a web server.
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
