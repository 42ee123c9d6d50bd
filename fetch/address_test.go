package fetch

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

func TestServerReceivesQueryUnchanged(t *testing.T) {
	r := newFixture(t)
	const query = "b=2&a=%2F1&checksum=md5:1&archive=tar&filename=x&empty"
	p := r.openPart(disk.PartOptions{})
	err := r.client.Download(context.Background(), Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image)) + "?" + query}, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.server.Requests()[0].Query; got != query {
		t.Errorf("the server got query %q, want %q", got, query)
	}
}

// TestServerReceivesPathUnchanged: go-getter would read "//" as a folder of an archive.
func TestServerReceivesPathUnchanged(t *testing.T) {
	for _, path := range []string{"/pool//image.raw", "//image.raw", "/a%2Fb//c.raw", "/image.raw//"} {
		r := newFixture(t)
		var requested string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			requested = q.URL.EscapedPath()
			_, _ = w.Write(image) // the client may disconnect
		}))
		t.Cleanup(server.Close)
		if err := r.download(Request{URL: server.URL + path}); err != nil || requested != path {
			t.Errorf("%s: the server got %s, error %v", path, requested, err)
		}
	}
}

func TestInvalidAddressesAreRefused(t *testing.T) {
	tests := []struct{ url, word string }{
		{"", "empty"},
		{"example.com/x", "no scheme"},
		{"//example.com/x", "no scheme"},
		{"httpsinvalid://example.com/x", `scheme "httpsinvalid"`},
		{"ftp://example.com/x", `scheme "ftp"`},
		{"git::https://example.com/x", "git::"},
		{"s3::ftp://example.com/bucket/key", `scheme "ftp"`},
		{"git@github.com:a/b", ""},
		{"file://", "no path"},
		{"https:///x", "no host"},
		{"https://user:" + secretMarker + "@example.com/x", "credentials folder"},
		{"file://host/x", "has a host"},
		{"https://example.com/%zz" + secretMarker, "not a URL"},
		{"s3::https://example.com/bucket", "bucket and a key"},
		{"s3://bucket/key?versionId=" + secretMarker, "query"},
		{"file:///etc/passwd", "not below"},
	}
	for _, tt := range tests {
		r := newFixture(t)
		r.client.AllowLoopback, r.client.FileRoots = false, []string{t.TempDir()}
		p := r.openPart(disk.PartOptions{})
		wantError(t, r.client.Download(context.Background(), Request{URL: tt.url}, p, nil), BadConfig, tt.word)
	}
}
