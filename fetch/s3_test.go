package fetch

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// useS3Credentials writes credentials for the faulty server. It supports the requests of S3 that a
// download needs: GET with Range and If-Match.
func (r *fixture) useS3Credentials() {
	r.writeCredentials("bucket", map[string]string{
		"access-key-id": "key" + secretMarker, "secret-access-key": secretMarker, "session-token": "token" + secretMarker,
		"endpoint": r.server.URL, "region": "eu-central-1",
	})
}

func TestDownloadFromS3(t *testing.T) {
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
		{name: "slashes in the key", url: "s3://images//slashes//image.raw/", ranges: []string{""}},
		{name: "by address", url: "s3::SERVER/images/dir/image.raw", ranges: []string{""}},
		{name: "cut", url: "s3://images/dir/image.raw", faults: []fault{{Kind: fetchtest.Cut, At: 1 << 20, Times: 2}},
			ranges: []string{"", "bytes=1048576-", "bytes=2097152-"}},
		{name: "changed", url: "s3://images/dir/image.raw", faults: []fault{{Kind: fetchtest.Cut, At: 1 << 20, Times: 1}, {Kind: fetchtest.Changing}},
			ranges: []string{"", "bytes=1048576-", ""}},
		{name: "away", url: "s3://images/nothing.raw", class: Refused, word: "404"},
		{name: "unavailable", url: "s3://images/dir/image.raw", faults: []fault{{Kind: fetchtest.Unavailable}}, class: Network, word: "503"},
		{name: "no bucket", url: "s3://images", class: BadConfig, word: "no path"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			r.useS3Credentials()
			r.server.Serve("/images/dir/image.raw", fetchtest.Bytes(image), tt.faults...)
			r.server.Serve("/images//slashes//image.raw/", fetchtest.Bytes(image))
			err := r.download(Request{URL: strings.ReplaceAll(tt.url, "SERVER", r.server.URL), Credentials: "bucket"})
			if tt.class != 0 {
				wantError(t, err, tt.class, tt.word)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r.wantImage(image)
			if got := r.rangeHeaders(); !slices.Equal(got, tt.ranges) {
				t.Errorf("got ranges %q, want %q", got, tt.ranges)
			}
			for _, q := range r.server.Requests() {
				if got := q.Header.Get("Authorization"); !strings.Contains(got, "eu-central-1/s3/aws4_request") {
					t.Errorf("got authorization %q, want a signature for the region", got)
				}
				if q.Range != "" && q.Header.Get("If-Match") == "" {
					t.Errorf("the request for the missing bytes has no If-Match")
				}
			}
		})
	}
}

// TestS3MirrorOnOtherHostIsRequestedUnsigned: the keys belong to another host.
func TestS3MirrorOnOtherHostIsRequestedUnsigned(t *testing.T) {
	r := newFixture(t)
	r.useS3Credentials()
	other := fetchtest.Start(t)
	other.Serve("/images/image.raw", fetchtest.Bytes(image))
	mirrors := []string{"s3::" + other.URL + "/images/image.raw"} // an S3 address cannot have the secret query of the fixture
	req := Request{URL: "s3://images/nothing.raw", Mirrors: mirrors, Credentials: "bucket"}
	if err := r.client.Download(t.Context(), req, r.openPart(disk.PartOptions{}), nil); err != nil {
		t.Fatal(err)
	}
	for _, q := range other.Requests() {
		if h := q.Header; h.Get("Authorization") != "" || h.Get("X-Amz-Security-Token") != "" {
			t.Errorf("a mirror on another host got the headers %v", h)
		}
	}
}

func TestS3LoopbackEndpointIsRefused(t *testing.T) {
	r := newFixture(t)
	r.client.AllowLoopback = false
	r.useS3Credentials()
	wantError(t, r.download(Request{URL: "s3://images/image.raw", Credentials: "bucket"}), BadConfig, "loopback")
	wantError(t, r.download(Request{URL: "s3::http://169.254.169.254/images/image.raw"}), BadConfig, "link-local")
}

func TestS3ConnectionRefused(t *testing.T) {
	r := newFixture(t)
	err := r.download(Request{URL: "s3::http://127.0.0.1:1/images/image.raw"})
	wantError(t, err, Network, "connection refused")
	if strings.Contains(err.Error(), "Get ") {
		t.Errorf("the error prints the request: %v", err)
	}
}

func (r *fixture) bucket(target, credentials string) *Bucket {
	r.t.Helper()
	b, err := r.client.OpenBucket(target, credentials)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(b.Close)
	return b
}

func put(t *testing.T, b *Bucket, data []byte) error {
	_, err := minio.Core{Client: b.Client}.PutObject(t.Context(), b.Name, "x.blk", bytes.NewReader(data), int64(len(data)), "", "", minio.PutObjectOptions{DisableContentSha256: true})
	if err != nil {
		err = b.Classify(t.Context(), err)
	}
	return err
}

// TestBucketRequestStalls uses servers that do not read, do not respond, or stop in the middle of a
// response.
func TestBucketRequestStalls(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-ended
	}))
	halfway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, `<?xml version="1.0"?>`)
		w.(http.Flusher).Flush()
		<-ended
	}))
	t.Cleanup(func() {
		close(ended)
		silent.Close()
		halfway.Close()
	})
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections but reads nothing
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	for url, word := range map[string]string{silent.URL: "no response in time", halfway.URL: "stalled", "http://" + deaf.Addr().String(): "stalled"} {
		r := &fixture{t: t, client: &Client{AllowLoopback: true, timing: timing{connect: time.Minute, firstByte: time.Second, stall: time.Second}}}
		b := r.bucket("s3::"+url+"/images/", "")
		if url != halfway.URL {
			wantError(t, put(t, b, make([]byte, 32<<20)), Network, word)
		}
		if url == "http://"+deaf.Addr().String() {
			word = "no response in time"
		}
		for o := range b.ListObjectsIter(t.Context(), b.Name, minio.ListObjectsOptions{}) {
			wantError(t, b.Classify(t.Context(), o.Err), Network, word)
		}
	}
}

// TestBucketReusesConnections checks that several requests use one connection, and that Close closes
// it.
func TestBucketReusesConnections(t *testing.T) {
	t.Parallel()
	var made atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("ETag", `"a"`)
	}))
	closed := make(chan struct{}, 1)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s {
		case http.StateNew:
			made.Add(1)
		case http.StateClosed:
			closed <- struct{}{}
		}
	}
	server.Start()
	defer server.Close()
	r := &fixture{t: t, client: &Client{AllowLoopback: true}}
	b := r.bucket("s3::"+server.URL+"/images/", "")
	for range 5 {
		if err := put(t, b, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if made.Load() != 1 {
		t.Errorf("5 requests took %d connections", made.Load())
	}
	b.Close()
	<-closed
}

// TestInvalidBucketAddressesAreRefused checks that an invalid address is an error before any request.
func TestInvalidBucketAddressesAreRefused(t *testing.T) {
	r := newFixture(t)
	r.useS3Credentials()
	_, err := r.client.OpenBucket("s3::http://images.example.com/bucket", "bucket")
	wantError(t, err, BadConfig, "unencrypted")
	_, err = r.client.OpenBucket("https://images.example.com/bucket", "bucket")
	wantError(t, err, BadConfig, "not an S3 address")
	_, err = r.client.OpenBucket("s3://bucket/", "nobody")
	wantError(t, err, BadConfig, "no such folder")
}

// TestLonghornSecretWorksUnchanged uses the secret of a Longhorn backup target, and that of a DataVolume of CDI.
func TestLonghornSecretWorksUnchanged(t *testing.T) {
	server, ca := fetchtest.StartTLS(t)
	r := newFixture(t)
	host := strings.TrimPrefix(server.URL, "https://")
	secret := func(change map[string]string) map[string]string {
		files := map[string]string{
			"AWS_ACCESS_KEY_ID": "key" + secretMarker, "AWS_SECRET_ACCESS_KEY": secretMarker + "\n", "AWS_ENDPOINTS": server.URL + "/",
			"AWS_CERT": string(ca), "VIRTUAL_HOSTED_STYLE": "",
		}
		for name, content := range change {
			files[name] = content
		}
		return files
	}
	server.Serve("/images/image.raw", fetchtest.Bytes(image))
	for name, change := range map[string]map[string]string{"as-it-is": {}, "host": {"AWS_ENDPOINTS": host}, "azure": {"AZBLOB_ACCOUNT_NAME": secretMarker, "AWS_IAM_ROLE_ARN": ""}} {
		r.writeCredentials(name, secret(change))
		server.ClearRequests()
		if err := r.into(r.openPart(disk.PartOptions{}), Request{URL: "s3://images/image.raw", Credentials: name}); err != nil {
			t.Fatal(err)
		}
		if got := server.Requests()[0].Header.Get("Authorization"); !strings.Contains(got, "Credential=key"+secretMarker+"/") {
			t.Errorf("%s: got authorization %q", name, got)
		}
	}
	r.writeCredentials("cdi", map[string]string{"accessKeyId": "key" + secretMarker, "secretKey": secretMarker, "ca.crt": string(ca)})
	server.ClearRequests()
	if err := r.into(r.openPart(disk.PartOptions{}), Request{URL: "s3::" + server.URL + "/images/image.raw", Credentials: "cdi"}); err != nil {
		t.Fatal(err)
	}
	if got := server.Requests()[0].Header.Values("Authorization"); len(got) != 1 || !strings.Contains(got[0], "Credential=key"+secretMarker+"/") {
		t.Errorf("secret of CDI: got authorization %q", got)
	}
	for name, tt := range map[string]struct {
		change map[string]string
		word   string
	}{
		"twice":    {map[string]string{"access-key-id": "other"}, "keep only one"},
		"path":     {map[string]string{"AWS_ENDPOINTS": server.URL + "/minio"}, "not the address of a server"},
		"user":     {map[string]string{"AWS_ENDPOINTS": "https://user:" + secretMarker + "@host"}, "not the address of a server"},
		"style":    {map[string]string{"VIRTUAL_HOSTED_STYLE": "yes"}, `must contain "true" or "false"`},
		"half":     {map[string]string{"AWS_SECRET_ACCESS_KEY": ""}, "one is missing"},
		"bad cert": {map[string]string{"AWS_CERT": secretMarker}, "no certificate"},
	} {
		r.writeCredentials(name, secret(tt.change))
		_, err := r.client.OpenBucket("s3://images@eu-central-1/", name)
		wantError(t, err, BadConfig, tt.word)
	}
}

// TestVirtualHostedStyle checks requests with the bucket in the host name.
func TestVirtualHostedStyle(t *testing.T) {
	t.Setenv("HTTP_PROXY", "") // the proxy would not resolve names in .localhost
	hosts := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { hosts <- r.Host + r.URL.Path }))
	defer server.Close()
	r := newFixture(t)
	endpoint := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	for style, want := range map[string]string{"true": "images.HOST/x.blk", "false": "HOST/images/x.blk"} {
		r.writeCredentials(style, map[string]string{"endpoint": endpoint, "virtual-hosted-style": style})
		b := r.bucket("s3://images@eu-central-1/", style)
		if err := put(t, b, nil); err != nil && !errors.Is(err, errNotS3) {
			var dns *net.DNSError
			if !errors.As(err, &dns) {
				t.Fatal(err)
			}
			if !strings.HasPrefix(dns.Name, "images.") && dns.Name != "localhost" {
				t.Errorf("resolved the address of %s", dns.Name)
			}
			continue // this machine does not resolve localhost, or not the names below it
		}
		if got := <-hosts; got != strings.Replace(want, "HOST", strings.TrimPrefix(endpoint, "http://"), 1) {
			t.Errorf("style %s: requested %s, want %s", style, got, want)
		}
	}
}
