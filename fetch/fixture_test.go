package fetch

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// secretMarker is part of every query, user, password, token and header of the tests. No error may
// contain it.
const secretMarker = "s3cr3t"

var testID = ident.ID{Name: "parrot", UUID: "6846a0b2"}

// fixture contains a client, a disk and a faulty server.
type fixture struct {
	t      testing.TB
	client *Client
	disk   *disk.Disk
	server *fetchtest.Server
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"} {
		if v, ok := t.(interface{ Setenv(string, string) }); ok {
			v.Setenv(name, "")
		}
	}
	dir := t.TempDir()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return &fixture{
		t: t, disk: d, server: fetchtest.Start(t),
		client: &Client{
			SecretsDir: t.TempDir(), AllowLoopback: true,
			timing: timing{connect: 5 * time.Second, firstByte: 5 * time.Second, stall: 10 * time.Second},
		},
	}
}

// openPart opens the partial file of the image.
func (r *fixture) openPart(o disk.PartOptions) *disk.Part {
	r.t.Helper()
	p, err := r.disk.OpenPart(context.Background(), testID, o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	return p
}

// download downloads and commits an image like a job.
func (r *fixture) download(req Request) error {
	r.t.Helper()
	p := r.openPart(disk.PartOptions{SHA256: req.Digest.Algorithm() == ident.SHA256})
	defer p.Close()
	if err := r.into(p, req); err != nil {
		return err
	}
	_, err := p.Commit(req.Digest)
	return ClassifyDiskError(err)
}

func (r *fixture) into(p *disk.Part, req Request) error {
	r.t.Helper()
	if strings.HasPrefix(req.URL, "http") {
		req.URL = withSecretQuery(req.URL)
	}
	for i, mirror := range req.Mirrors {
		req.Mirrors[i] = withSecretQuery(mirror)
	}
	err := r.client.Download(context.Background(), req, p, nil)
	if err != nil && strings.Contains(err.Error(), secretMarker) {
		r.t.Errorf("the error contains a secret: %v", err)
	}
	return err
}

// withSecretQuery adds a secret to the query of an address.
func withSecretQuery(url string) string {
	if strings.Contains(url, "?") {
		return url + "&sig=" + secretMarker
	}
	return url + "?sig=" + secretMarker
}

// wantImage fails the test unless the image on the disk is want.
func (r *fixture) wantImage(want []byte) {
	r.t.Helper()
	got, err := os.ReadFile(filepath.Join(r.disk.Path(), "backing-images", testID.String(), "backing"))
	if err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		r.t.Fatalf("the image on the disk (%d bytes) differs from the source (%d bytes)", len(got), len(want))
	}
}

func (r *fixture) wantNoImage() {
	r.t.Helper()
	_, err := os.Stat(filepath.Join(r.disk.Path(), "backing-images", testID.String(), "backing"))
	if !errors.Is(err, os.ErrNotExist) {
		r.t.Errorf("want no image on the disk, got one or error %v", err)
	}
}

// wantError fails the test unless err has the class and contains all words.
func wantError(t testing.TB, err error, class Class, words ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, want an error of class %v", err, class)
	}
	if e.Class != class {
		t.Errorf("got class %v, want %v: %v", e.Class, class, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("the error does not contain %q: %v", w, err)
		}
	}
	if strings.Contains(err.Error(), secretMarker) {
		t.Errorf("the error contains a secret: %v", err)
	}
}

func digest(b []byte) ident.Digest {
	h := sha512.New()
	h.Write(b)
	return ident.SHA512.Digest(h)
}

// rangeHeaders returns the Range headers of all requests.
func (r *fixture) rangeHeaders() []string {
	var l []string
	for _, q := range r.server.Requests() {
		l = append(l, q.Range)
	}
	return l
}
