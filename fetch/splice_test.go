package fetch

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"
)

// TestNothingIsSpliced has servers that know Range but not If-Range, and a file that
// becomes another one of the same length when half of it is read. No checksum is
// declared, so that nothing else would tell.
func TestNothingIsSpliced(t *testing.T) {
	other := slices.Clone(image)
	for i := range other {
		other[i] ^= 0x55
	}
	long := time.Now().Add(-24 * time.Hour).UTC()
	for name, validators := range map[string]func(h http.Header, version, status int){
		"date": func(h http.Header, version, _ int) {
			h.Set("Last-Modified", long.Add(time.Duration(version)*time.Hour).Format(http.TimeFormat))
		},
		"etag": func(h http.Header, version, _ int) { h.Set("ETag", fmt.Sprintf(`"v%d"`, version)) },
		"etag of the whole only": func(h http.Header, version, status int) {
			if status == http.StatusOK {
				h.Set("ETag", fmt.Sprintf(`"v%d"`, version))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				body, status, at := other, http.StatusOK, 0
				if asked++; asked == 1 {
					body = image
				}
				if _, err := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-", &at); err == nil {
					status = http.StatusPartialContent
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, len(body)-1, len(body)))
				}
				validators(w.Header(), asked, status)
				w.Header().Set("Content-Length", fmt.Sprint(len(body)-at))
				w.WriteHeader(status)
				if asked == 1 {
					_, _ = w.Write(body[:len(body)/2])
					panic(http.ErrAbortHandler)
				}
				_, _ = w.Write(body[at:]) // fails when the client does not want it
			}))
			defer server.Close()
			if err := r.download(Request{URL: server.URL + "/image.raw"}); err != nil {
				t.Fatal(err)
			}
			r.stored(other)
		})
	}
}
