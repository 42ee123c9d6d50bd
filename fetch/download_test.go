package fetch

import (
	"crypto/sha256"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// image has a little more than 3 MiB: three whole chunks and a short one.
var image = fetchtest.Random(1, 3<<20+512*7)

// TestDownloadWithFaultyServer injects one fault at a time, with and without a declared digest. If a
// case has no expected class, the download must succeed.
func TestDownloadWithFaultyServer(t *testing.T) {
	type fault = fetchtest.Fault
	tests := []struct {
		name     string
		faults   []fault
		declared bool
		class    Class
		words    []string
		ranges   []string // Range headers of all requests; nil: not checked
	}{
		{name: "none", ranges: []string{""}},
		{name: "none, declared", declared: true, ranges: []string{""}},
		{name: "cut once", faults: []fault{{Kind: fetchtest.Cut, At: mid, Times: 1}}, ranges: []string{"", "bytes=2097252-"}},
		{name: "cut three times", faults: []fault{{Kind: fetchtest.Cut, At: 1 << 20, Times: 3}},
			ranges: []string{"", "bytes=1048576-", "bytes=2097152-", "bytes=3145728-"}},
		{name: "cut without progress", faults: []fault{{Kind: fetchtest.Cut, At: 100}}, class: Dropped, words: []string{"5 times in a row"}},
		{name: "reset", faults: []fault{{Kind: fetchtest.Reset, At: mid, Times: 2}}},
		{name: "no range", faults: []fault{{Kind: fetchtest.NoRange}, {Kind: fetchtest.Cut, At: mid, Times: 1}}},
		{name: "no range, always cut", faults: []fault{{Kind: fetchtest.NoRange}, {Kind: fetchtest.Cut, At: mid}}, class: Dropped, words: []string{"in a row"}},
		{name: "the response has another range", faults: []fault{{Kind: fetchtest.BadRange}, {Kind: fetchtest.Cut, At: mid, Times: 1}},
			ranges: []string{"", "bytes=2097252-", ""}},
		{name: "no validator", faults: []fault{{Kind: fetchtest.NoValidator}, {Kind: fetchtest.Cut, At: mid, Times: 1}}, ranges: []string{"", ""}},
		{name: "no validator, declared", declared: true, faults: []fault{{Kind: fetchtest.NoValidator}, {Kind: fetchtest.Cut, At: mid, Times: 1}},
			ranges: []string{"", "bytes=2097252-"}},
		{name: "weak validator", faults: []fault{{Kind: fetchtest.Weak}, {Kind: fetchtest.Cut, At: mid, Times: 1}}, ranges: []string{"", ""}},
		{name: "etag changes with each request", faults: []fault{{Kind: fetchtest.Changing}, {Kind: fetchtest.Cut, At: mid, Times: 1}}},
		{name: "long", faults: []fault{{Kind: fetchtest.Long, At: 512}}, class: Dropped, words: []string{"512 bytes before the end"}},
		{name: "short, declared", declared: true, faults: []fault{{Kind: fetchtest.Short, At: 512}}, class: BadSource, words: []string{"checksum mismatch"}},
		{name: "stall", faults: []fault{{Kind: fetchtest.Stall, At: mid}}, class: Network, words: []string{"stalled", "1 KiB/s"}},
		{name: "drip", faults: []fault{{Kind: fetchtest.Drip, At: mid}}, class: Network, words: []string{"stalled"}},
		{name: "flip", faults: []fault{{Kind: fetchtest.Flip, At: mid}}, declared: true, class: BadSource, words: []string{"checksum mismatch"}},
		{name: "empty", faults: []fault{{Kind: fetchtest.Empty}}, class: Refused, words: []string{"empty"}},
		{name: "empty, no length", declared: true, faults: []fault{{Kind: fetchtest.Empty}, {Kind: fetchtest.NoLength}}, class: BadSource, words: []string{"empty"}},
		{name: "no length", faults: []fault{{Kind: fetchtest.NoLength}}, class: BadSource, words: []string{"length", "declare a checksum"}},
		{name: "no length, declared", declared: true, faults: []fault{{Kind: fetchtest.NoLength}}},
		{name: "no length, cut, declared", declared: true, faults: []fault{{Kind: fetchtest.NoLength}, {Kind: fetchtest.Cut, At: mid, Times: 1}},
			class: BadSource, words: []string{"checksum mismatch"}},
		{name: "chunked", faults: []fault{{Kind: fetchtest.Chunked}}},
		{name: "chunked, cut", faults: []fault{{Kind: fetchtest.Chunked}, {Kind: fetchtest.Cut, At: mid, Times: 1}}, ranges: []string{"", "bytes=2097252-"}},
		{name: "chunked, cut at the end", faults: []fault{{Kind: fetchtest.Chunked}, {Kind: fetchtest.Cut, At: int64(len(image)), Times: 1}},
			ranges: []string{"", "bytes=3149312-"}},
		{name: "no response", faults: []fault{{Kind: fetchtest.Silent}}, class: Network, words: []string{"no response in time"}},
		{name: "gzip", faults: []fault{{Kind: fetchtest.Gzip}}, class: BadSource, words: []string{"Content-Encoding", "gzip"}},
		{name: "503", faults: []fault{{Kind: fetchtest.Unavailable}}, class: Network, words: []string{"503 Service Unavailable"}},
		{name: "429", faults: []fault{{Kind: fetchtest.Busy, After: "120"}}, class: Network, words: []string{"429"}},
		{name: "404", faults: []fault{{Kind: fetchtest.NotFound}}, class: Refused, words: []string{"404 Not Found"}},
		{name: "web page", faults: []fault{{Kind: fetchtest.Page}}, class: Refused, words: []string{"web page instead"}},
		{name: "image with the type of a web page", faults: []fault{{Kind: fetchtest.HTML}}},
		{name: "401", faults: []fault{{Kind: fetchtest.Basic}}, class: Refused, words: []string{"401", "no credentials are declared"}},
		{name: "redirect loop", faults: []fault{{Kind: fetchtest.Loop}}, class: Refused, words: []string{"redirect loop"}},
		{name: "redirect to file", faults: []fault{{Kind: fetchtest.Redirect, To: "file:///etc/passwd"}}, class: BadConfig, words: []string{"scheme \"file\""}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			if slices.Contains(tt.words, "stalled") {
				r.client.timing.stall = 500 * time.Millisecond
			}
			if slices.Contains(tt.words, "no response in time") {
				r.client.timing.firstByte = 500 * time.Millisecond
			}
			req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), tt.faults...)}
			if tt.declared {
				req.Digest = digest(image)
			}
			err := r.download(req)
			if tt.ranges != nil && !slices.Equal(r.rangeHeaders(), tt.ranges) {
				t.Errorf("got requests with ranges %q, want %q", r.rangeHeaders(), tt.ranges)
			}
			if tt.class != 0 {
				wantError(t, err, tt.class, tt.words...)
				r.wantNoImage()
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.wantImage(image)
		})
	}
}

func TestRetryAfterOfServer(t *testing.T) {
	r := newFixture(t)
	err := r.download(Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Busy, After: "600"})})
	var e *Error
	if !errors.As(err, &e) || e.RetryAfter != 10*time.Minute {
		t.Errorf("got %#v, want an error with the delay that the server requested", err)
	}
}

func TestDownloadComparesSHA256(t *testing.T) {
	r := newFixture(t)
	h := sha256.New()
	h.Write(image)
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image)), Digest: ident.SHA256.Digest(h)}
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
}

func TestDownloadTriesMirrors(t *testing.T) {
	type fault = fetchtest.Fault
	away := fault{Kind: fetchtest.NotFound}
	tests := []struct {
		name     string
		url      []fault
		mirror   []fault
		declared bool
		class    Class
		words    []string
		ranges   []string // Range headers of all requests except the first
	}{
		{name: "the first address works"},
		{name: "the first address is missing", url: []fault{away}, ranges: []string{""}},
		{name: "resumed from a mirror because of the digest", url: []fault{cutOnce, gone}, declared: true, ranges: []string{"bytes=2097252-", "bytes=2097252-"}},
		{name: "not combined without a digest", url: []fault{cutOnce, gone, {Kind: fetchtest.NoValidator}}, ranges: []string{"", ""}},
		{name: "resumed from a mirror because of a strong ETag", url: []fault{cutOnce, gone}, ranges: []string{"bytes=2097252-", "bytes=2097252-"}},
		{name: "wrong kind of file", url: []fault{{Kind: fetchtest.Gzip}}, declared: true, ranges: []string{""}},
		{name: "a web page at the first address", url: []fault{{Kind: fetchtest.Page}}, ranges: []string{""}},
		{name: "not combined with the bytes of a wrong response", url: []fault{cutOnce, {Kind: fetchtest.Gzip, Skip: 1}}, declared: true,
			ranges: []string{"bytes=2097252-", ""}},
		{name: "both missing", url: []fault{away}, mirror: []fault{{Kind: fetchtest.Unavailable}},
			class: Network, words: []string{"image.raw: the server responds with 404", "mirror.raw: the server responds with 503"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			req := Request{
				URL:     r.server.Serve("/image.raw", fetchtest.Bytes(image), tt.url...),
				Mirrors: []string{r.server.Serve("/mirror.raw", fetchtest.Bytes(image), tt.mirror...)},
			}
			if tt.declared {
				req.Digest = digest(image)
			}
			err := r.download(req)
			if tt.class != 0 {
				wantError(t, err, tt.class, tt.words...)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.wantImage(image)
			if got := r.rangeHeaders()[1:]; !slices.Equal(got, tt.ranges) {
				t.Errorf("got ranges %q after the first request, want %q", got, tt.ranges)
			}
		})
	}
}
