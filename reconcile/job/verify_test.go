package job_test

import (
	"bytes"
	"crypto/sha512"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/klauspost/compress/gzip"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// signedSite is a server with files, and a key that may sign them.
type signedSite struct {
	*httptest.Server
	keysDir string
	private minisign.PrivateKey

	mu       sync.Mutex
	files    map[string][]byte
	requests []string
}

func newSignedSite(t *testing.T) *signedSite {
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &signedSite{keysDir: t.TempDir(), private: private, files: map[string][]byte{}}
	if err := os.MkdirAll(filepath.Join(s.keysDir, "vendor"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.keysDir, "vendor", "minisign.pub"), []byte(public.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.URL.Path)
		b, ok := s.files[r.URL.Path]
		s.mu.Unlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}))
	t.Cleanup(s.Close)
	return s
}

// sign adds the signature of a file.
func (s *signedSite) sign(t *testing.T, path string) {
	r := minisign.NewReader(bytes.NewReader(s.files[path]))
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	s.files[path+".minisig"] = r.Sign(s.private)
}

// download returns a job that downloads to a new disk.
func (s *signedSite) download(t *testing.T, source schema.Download, checksum ident.Digest) job.Job {
	folder := t.TempDir()
	if _, err := disk.Init(folder); err != nil {
		t.Fatal(err)
	}
	id := ident.ID{Name: "parrot", UUID: "6846a0b2"}
	j := job.Job{
		Order: job.Order{Action: plan.Action{Op: model.Download, Image: id.Name, UUID: id.UUID}, Progress: &fetch.Progress{}},
		Disk:  open(t, folder), Client: &fetch.Client{AllowLoopback: true, KeysDir: s.keysDir},
		Survey: func(assemble.Survey) {}, WarnIndex: func(err error) { t.Error(err) }, WarnKeys: func(text string) { t.Error(text) },
	}
	j.Image = schema.Image{ID: id, Checksum: checksum, Source: schema.Source{Download: &source}, Verify: &schema.Verify{Scheme: schema.VerifyMinisign, Keys: "vendor"}}
	return j
}

func sum512(t *testing.T, b []byte) ident.Digest {
	sum := sha512.Sum512(b)
	d, err := ident.ParseDigest(hex.EncodeToString(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSignatureWithAnIndex checks that an index does not replace the verification of the bytes that are signed. The
// signature of a packed file cannot be judged without all of its bytes, so that no index is read then.
func TestSignatureWithAnIndex(t *testing.T) {
	image := bytes.Repeat([]byte("parrot!!"), 1<<17)
	other := bytes.Repeat([]byte("macaw!!!"), 1<<17)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(image); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path        string
		sent, signed      []byte
		usesIndex, accept bool
	}{
		{"plain", "/x.raw", image, image, true, true},
		{"plain, another file is signed", "/x.raw", image, other, true, false},
		{"packed", "/x.raw.gz", packed.Bytes(), packed.Bytes(), false, true},
		{"packed, the image is signed", "/x.raw.gz", packed.Bytes(), image, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newSignedSite(t)
			s.files[tt.path] = tt.signed
			s.sign(t, tt.path)
			s.files[tt.path], s.files["/x.caibx"] = tt.sent, indexOf(t, image)
			unpack := schema.UnpackNone
			if strings.HasSuffix(tt.path, ".gz") {
				unpack = schema.UnpackGzip
			}
			j := s.download(t, schema.Download{URL: s.URL + tt.path, Index: s.URL + "/x.caibx", Unpack: unpack}, sum512(t, image))
			j.WarnIndex = func(error) {}
			err := j.Run(t.Context())
			c := j.Disk.Stat(j.Image.ID)
			if (err == nil) != tt.accept || (c.State == model.Ready) != tt.accept || (c.Signature.Signer != "") != tt.accept {
				t.Errorf("got %+v, %v", c, err)
			}
			if slices.Contains(s.requests, "/x.caibx") != tt.usesIndex {
				t.Errorf("requests: %v", s.requests)
			}
		})
	}
}

// TestNextMirrorAfterABadSignature checks that a mirror with other bytes does not keep the image from being downloaded
// from the next one, and that the signature is not taken from the mirror.
func TestNextMirrorAfterABadSignature(t *testing.T) {
	image := bytes.Repeat([]byte("parrot!!"), 1<<17)
	s := newSignedSite(t)
	s.files["/x.raw"] = image
	s.sign(t, "/x.raw")
	s.files["/right"] = image
	s.files["/x.raw"], s.files["/bad"] = bytes.Repeat([]byte("macaw!!!"), 1<<17), []byte("short")
	j := s.download(t, schema.Download{URL: s.URL + "/x.raw", Mirrors: []string{s.URL + "/bad", s.URL + "/right"}, Unpack: schema.UnpackNone}, ident.Digest{})
	if err := j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if c := j.Disk.Stat(j.Image.ID); c.SHA512 != sum512(t, image) || c.Signature.Scheme != "minisign" {
		t.Errorf("got %+v", c)
	}
	if slices.Contains(s.requests, "/right.minisig") || slices.Contains(s.requests, "/bad.minisig") {
		t.Errorf("requests: %v", s.requests)
	}
}

// TestLocalSyncKeepsTheSignature checks that a copy of the same bytes on another disk of the node has the signature, and one
// under another name has not.
func TestLocalSyncKeepsTheSignature(t *testing.T) {
	image := bytes.Repeat([]byte("parrot!!"), 1<<17)
	s := newSignedSite(t)
	s.files["/x.raw"] = image
	s.sign(t, "/x.raw")
	first := s.download(t, schema.Download{URL: s.URL + "/x.raw", Unpack: schema.UnpackNone}, ident.Digest{})
	if err := first.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := first.Disk.Stat(first.Image.ID).Signature
	for _, name := range []string{"parrot", "macaw"} {
		j := s.download(t, schema.Download{URL: s.URL + "/x.raw"}, ident.Digest{})
		id := ident.ID{Name: name, UUID: "6846a0b2"}
		j.Action = plan.Action{Op: model.Sync, Image: id.Name, UUID: id.UUID, LocalSource: ident.CopyRef{ID: first.Image.ID}}
		j.Disks = map[string]*disk.Disk{"": first.Disk}
		if err := j.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := j.Disk.Stat(id).Signature; (got == want) != (name == "parrot") || want.Signer == "" {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
}
