package fetch

import (
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/fetchtest"
)

// s3 gives the rig credentials for its own server, which knows as much of S3 as a
// download needs: GET with Range and If-Match.
func (r *rig) s3() {
	r.secret("bucket", map[string]string{
		"access-key-id": "key" + marker, "secret-access-key": marker, "session-token": "token" + marker,
		"endpoint": r.server.URL, "region": "eu-central-1",
	})
}

func TestS3(t *testing.T) {
	type fault = fetchtest.Fault
	tests := []struct {
		name   string
		url    string
		faults []fault
		class  Class
		word   string
		ranges []string
	}{
		{name: "by endpoint", url: "s3://images/dir/image.raw", ranges: []string{""}},
		{name: "by address", url: "s3::SERVER/images/dir/image.raw", ranges: []string{""}},
		{name: "cut", url: "s3://images/dir/image.raw", faults: []fault{{Kind: fetchtest.Cut, At: 1 << 20, Times: 2}},
			ranges: []string{"", "bytes=1048576-", "bytes=2097152-"}},
		{name: "changed", url: "s3://images/dir/image.raw", faults: []fault{{Kind: fetchtest.Cut, At: 1 << 20, Times: 1}, {Kind: fetchtest.Changing}},
			ranges: []string{"", "bytes=1048576-", ""}},
		{name: "away", url: "s3://images/nothing.raw", class: Refused, word: "404"},
		{name: "unavailable", url: "s3://images/dir/image.raw", faults: []fault{{Kind: fetchtest.Unavailable}}, class: Network, word: "503"},
		{name: "no bucket", url: "s3://images", class: Config, word: "no path"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			r.s3()
			r.server.Serve("/images/dir/image.raw", fetchtest.Bytes(image), tt.faults...)
			err := r.download(Request{URL: strings.ReplaceAll(tt.url, "SERVER", r.server.URL), Credentials: "bucket"})
			if tt.class != 0 {
				failed(t, err, tt.class, tt.word)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.stored(image)
			if got := r.ranges(); !slices.Equal(got, tt.ranges) {
				t.Errorf("got ranges %q, want %q", got, tt.ranges)
			}
			for _, q := range r.server.Requests() {
				if got := q.Header.Get("Authorization"); !strings.Contains(got, "eu-central-1/s3/aws4_request") {
					t.Errorf("got authorization %q, want a signature for the region", got)
				}
				if q.Range != "" && q.Header.Get("If-Match") == "" {
					t.Errorf("the rest was asked for without If-Match")
				}
			}
		})
	}
}

// TestS3MirrorSeesNoKeys: a mirror on another host is asked without a signature.
func TestS3MirrorSeesNoKeys(t *testing.T) {
	r := newRig(t)
	r.s3()
	other := fetchtest.Start(t)
	other.Serve("/images/image.raw", fetchtest.Bytes(image))
	mirrors := []string{"s3::" + other.URL + "/images/image.raw"} // not signed by the rig: S3 has no query
	req := Request{URL: "s3://images/nothing.raw", Mirrors: mirrors, Credentials: "bucket"}
	if err := r.client.Download(t.Context(), req, r.part(disk.PartOptions{}), nil); err != nil {
		t.Fatal(err)
	}
	for _, q := range other.Requests() {
		if h := q.Header; h.Get("Authorization") != "" || h.Get("X-Amz-Security-Token") != "" {
			t.Errorf("a mirror on another host got %v", h)
		}
	}
}

func TestS3RefusedHost(t *testing.T) {
	r := newRig(t)
	r.client.AllowLoopback = false
	r.s3()
	failed(t, r.download(Request{URL: "s3://images/image.raw", Credentials: "bucket"}), Config, "loopback")
	failed(t, r.download(Request{URL: "s3::http://169.254.169.254/images/image.raw"}), Config, "link-local")
}

func TestS3Unreachable(t *testing.T) {
	r := newRig(t)
	err := r.download(Request{URL: "s3::http://127.0.0.1:1/images/image.raw"})
	failed(t, err, Network, "connection refused")
	if strings.Contains(err.Error(), "Get ") {
		t.Errorf("the error prints the request: %v", err)
	}
}
