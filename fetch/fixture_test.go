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
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// marker stands in every query, user, password, token and header of the tests, and
// must not be in any error.
const marker = "s3cr3t"

var testID = disk.ID{Name: "parrot", UUID: "6846a0b2"}

// fixture is a client, a disk and an origin that misbehaves.
type fixture struct {
	t      testing.TB
	client *Client
	disk   *disk.Disk
	server *fetchtest.Server
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "NO_PROXY", "no_proxy"} {
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

// part opens the part of the image, or takes up what an earlier one left.
func (r *fixture) part(o disk.PartOptions) *disk.Part {
	r.t.Helper()
	p, err := r.disk.OpenPart(context.Background(), testID, o)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { p.Close() })
	return p
}

// download fetches and commits as a caller would.
func (r *fixture) download(req Request) error {
	r.t.Helper()
	p := r.part(disk.PartOptions{SHA256: req.Digest.Algorithm() == disk.SHA256})
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
		req.URL = signed(req.URL)
	}
	for i, mirror := range req.Mirrors {
		req.Mirrors[i] = signed(mirror)
	}
	err := r.client.Download(context.Background(), req, p, nil)
	if err != nil && strings.Contains(err.Error(), marker) {
		r.t.Errorf("error tells a secret: %v", err)
	}
	return err
}

// signed adds a secret to the query of an address.
func signed(url string) string {
	if strings.Contains(url, "?") {
		return url + "&sig=" + marker
	}
	return url + "?sig=" + marker
}

// stored fails the test unless the image on the disk is want.
func (r *fixture) stored(want []byte) {
	r.t.Helper()
	got, err := os.ReadFile(filepath.Join(r.disk.Path(), "backing-images", testID.String(), "backing"))
	if err != nil {
		r.t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		r.t.Fatalf("the image on the disk has %d bytes and differs from the %d of the source", len(got), len(want))
	}
}

func (r *fixture) noImage() {
	r.t.Helper()
	_, err := os.Stat(filepath.Join(r.disk.Path(), "backing-images", testID.String(), "backing"))
	if !errors.Is(err, os.ErrNotExist) {
		r.t.Errorf("there is an image on the disk, or %v", err)
	}
}

// failed fails the test unless err is of the class and says all of words.
func failed(t testing.TB, err error, class Class, words ...string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("got error %v, want one of class %v", err, class)
	}
	if e.Class != class {
		t.Errorf("got class %v, want %v: %v", e.Class, class, err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error does not say %q: %v", w, err)
		}
	}
	if strings.Contains(err.Error(), marker) {
		t.Errorf("error tells a secret: %v", err)
	}
}

func digest(b []byte) disk.Digest {
	h := sha512.New()
	h.Write(b)
	return disk.SHA512.Digest(h)
}

// ranges returns the Range headers that the server got.
func (r *fixture) ranges() []string {
	var l []string
	for _, q := range r.server.Requests() {
		l = append(l, q.Range)
	}
	return l
}
