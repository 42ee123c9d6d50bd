package fetch

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// TestDownloadThroughProxy downloads from a host that does not exist, through a proxy on loopback.
// The proxy is allowed, although loopback sources are not.
func TestDownloadThroughProxy(t *testing.T) {
	origin := fetchtest.New()
	origin.Serve("/image.raw", fetchtest.Bytes(image))
	var requested []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		requested = append(requested, q.URL.Host)
		origin.ServeHTTP(w, q)
	}))
	t.Cleanup(proxy.Close)
	for _, tt := range []struct {
		name        string
		environment map[string]string
		files       map[string]string // of the credentials
		direct      bool              // not through the proxy
	}{
		{"environment", map[string]string{"HTTP_PROXY": proxy.URL, "ALL_PROXY": "http://127.0.0.1:1"}, nil, false},
		{"environment for all schemes", map[string]string{"ALL_PROXY": proxy.URL}, nil, false},
		{"environment for all schemes in lower case", map[string]string{"all_proxy": proxy.URL}, nil, false},
		{"secret of Longhorn", nil, map[string]string{"HTTP_PROXY": proxy.URL + "\n", "HTTPS_PROXY": "", "NO_PROXY": "a.invalid", "AWS_ACCESS_KEY_ID": ""}, false},
		{"secret of Longhorn before the environment", map[string]string{"HTTP_PROXY": "http://127.0.0.1:1", "NO_PROXY": "*"}, map[string]string{"HTTP_PROXY": proxy.URL, "NO_PROXY": "a.invalid"}, false},
		{"exception in the secret of Longhorn", map[string]string{"HTTP_PROXY": proxy.URL}, map[string]string{"NO_PROXY": "images.invalid"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			r.client.AllowLoopback, requested = false, nil
			for name, value := range tt.environment {
				t.Setenv(name, value)
			}
			req := Request{URL: "http://images.invalid/image.raw"}
			if tt.files != nil {
				req.Credentials = "backups"
				r.writeCredentials("backups", tt.files)
			}
			if err := r.download(req); (err != nil) != tt.direct {
				t.Fatal(err)
			}
			if !tt.direct && (len(requested) != 1 || requested[0] != "images.invalid") || tt.direct && requested != nil {
				t.Errorf("the proxy received requests for %q", requested)
			}
		})
	}
}

func TestProxyPasswordIsNotInErrors(t *testing.T) {
	r := newFixture(t)
	t.Setenv("HTTPS_PROXY", "http://user:"+secretMarker+"@127.0.0.1:1/")
	wantError(t, r.download(Request{URL: "https://images.invalid/image.raw"}), Network, "refused")
	for _, proxy := range []string{"http://user:" + secretMarker + "@127.0.0.1:1/", "http://user:" + secretMarker + "@[/"} {
		r.writeCredentials("backups", map[string]string{"HTTPS_PROXY": proxy})
		err := r.download(Request{URL: "https://images.invalid/image.raw", Credentials: "backups"})
		if err == nil || strings.Contains(err.Error(), secretMarker) {
			t.Errorf("got error %v", err)
		}
	}
}

func TestLoopbackAndLinkLocalHostsAreRefused(t *testing.T) {
	hosts := []string{"127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "[::]",
		"169.254.169.254", "[fe80::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[fd00:ec2::254]", "168.63.129.16"}
	for _, host := range hosts {
		r := newFixture(t)
		r.client.AllowLoopback = false
		err := r.download(Request{URL: "http://" + host + ":1/image.raw"})
		wantError(t, err, BadConfig, "refused unless allowLoopbackSources is set")
	}
}

func TestRedirectToSpecialHostIsRefused(t *testing.T) {
	for host, kind := range map[string]string{"127.0.0.1": "loopback", "[64:ff9b::a9fe:a9fe]": "link-local", "[fd00:ec2::254]": "metadata"} {
		r := newFixture(t)
		r.client.AllowLoopback = false
		origin := fetchtest.New()
		origin.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Redirect, To: "http://" + host + ":1/x?" + secretMarker})
		proxy := httptest.NewServer(origin)
		t.Cleanup(proxy.Close)
		t.Setenv("HTTP_PROXY", proxy.URL)
		wantError(t, r.download(Request{URL: "http://images.invalid/image.raw"}), BadConfig, strings.Trim(host, "[]"), kind)
	}
}

// TestNameResolvedToLoopbackIsRefused checks that the resolved address is checked, not only the name.
func TestNameResolvedToLoopbackIsRefused(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:80", "[::1]:80", "169.254.169.254:80", "0.0.0.0:80", "[::ffff:127.0.0.1]:80", "[fe80::1%lo]:80"} {
		if err := checkDial("tcp", addr, nil); err == nil {
			t.Errorf("dialing %s is not rejected", addr)
		}
	}
	for _, addr := range []string{"10.0.0.1:80", "192.0.2.1:443", "[2001:db8::1]:443"} {
		if err := checkDial("tcp", addr, nil); err != nil {
			t.Errorf("dialing %s is rejected: %v", addr, err)
		}
	}
	c := &Client{timing: defaultTiming}
	n, err := c.network(&credentials{}, address{url: &url.URL{Scheme: "http", Host: "images.invalid", Path: "/"}})
	if err != nil {
		t.Fatal(err)
	}
	s := fetchtest.Start(t)
	if conn, err := n.anonymous.DialContext(context.Background(), "tcp", strings.TrimPrefix(s.URL, "http://")); err == nil {
		conn.Close()
		t.Error("the transport dialed loopback")
	}
}
