package fetch

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

func TestContentRange(t *testing.T) {
	tests := []struct {
		header       string
		start, total int64
		ok           bool
	}{
		{"bytes 5-9/10", 5, 10, true},
		{"bytes 0-4/10", 0, 10, true},
		{"bytes 5-9/*", 0, 0, false},
		{"bytes */10", 0, 0, false},
		{"bytes 5-10/10", 0, 0, false},
		{"bytes 9-5/10", 0, 0, false},
		{"bytes -5-9/10", 0, 0, false},
		{"lines 5-9/10", 0, 0, false},
		{"bytes 5-99999999999999999999/10", 0, 0, false},
		{"", 0, 0, false},
	}
	for _, tt := range tests {
		if start, total, ok := contentRange(tt.header); start != tt.start || total != tt.total || ok != tt.ok {
			t.Errorf("contentRange(%q) = %d, %d, %v", tt.header, start, total, ok)
		}
	}
}

func TestValidators(t *testing.T) {
	const modified, later = "Fri, 20 Nov 2026 10:00:00 GMT", "Fri, 20 Nov 2026 10:00:01 GMT"
	tests := []struct{ etag, modified, date, wantTag, wantDate string }{
		{`"a"`, modified, later, `"a"`, modified},
		{`W/"a"`, modified, later, "", modified},
		{`a`, "", later, "", ""},
		{"", modified, modified, "", ""}, // the file may change again within the same second
		{"", modified, "", "", ""},
	}
	for _, tt := range tests {
		h := http.Header{"Etag": {tt.etag}, "Last-Modified": {tt.modified}, "Date": {tt.date}}
		if tag, date := validators(h); tag != tt.wantTag || date != tt.wantDate {
			t.Errorf("validators(%v) = %q, %q, want %q, %q", h, tag, date, tt.wantTag, tt.wantDate)
		}
	}
}

// TestContentEncodings sends an image with a Content-Encoding that a client declared when it stored the file.
func TestContentEncodings(t *testing.T) {
	race.Skip(t)
	for encoding, accepted := range map[string]bool{
		"": true, "identity": true, "Identity": true, "aws-chunked": true, "UTF-8": true, "utf8": true, "binary": true, "none": true,
		"aws-chunked,": true, "aws-chunked, utf-8": true, "gzip": false, "aws-chunked,gzip": false, "br": false, "deflate": false,
	} {
		r := newFixture(t)
		small := image[:1<<20]
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", encoding)
			_, _ = w.Write(small)
		}))
		err := r.download(Request{URL: server.URL + "/image.raw", Digest: digest(small)})
		if server.Close(); accepted {
			if err != nil {
				t.Errorf("%q: %v", encoding, err)
			}
		} else {
			wantError(t, err, BadSource, "the server encoded the body")
		}
	}
}
