package fetch

import (
	"context"
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

func TestInvalidAddressesAreRefused(t *testing.T) {
	tests := []struct{ url, word string }{
		{"", "empty"},
		{"example.com/x", "no scheme"},
		{"//example.com/x", "no scheme"},
		{"httpsinvalid://example.com/x", `scheme "httpsinvalid"`},
		{"ftp://example.com/x", `scheme "ftp"`},
		{"git::https://example.com/x", "git::"},
		{"git@github.com:a/b", ""},
		{"https://example.com", "no path"},
		{"https:///x", "no host"},
		{"https://user:" + secretMarker + "@example.com/x", "credentials folder"},
		{"https://example.com/a//b", "subfolder"},
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
