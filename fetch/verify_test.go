package fetch

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/klauspost/compress/gzip"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// downloadSigned downloads and commits an image like a job.
func (r *fixture) downloadSigned(req Request) (model.Copy, error) {
	r.t.Helper()
	req, err := r.client.ReadSignature(context.Background(), req)
	if err != nil {
		return model.Copy{}, err
	}
	return r.commitSigned(req)
}

// commitSigned downloads and commits an image whose signature was read.
func (r *fixture) commitSigned(req Request) (model.Copy, error) {
	r.t.Helper()
	p := r.openPart(disk.PartOptions{SHA256: req.Digest.Algorithm() == ident.SHA256, Check: req.SignatureCheck()})
	defer p.Close()
	if err := r.client.Download(context.Background(), req, p, nil); err != nil {
		return model.Copy{}, err
	}
	return p.Commit(req.Digest)
}

// signifyKey is a key for tests with its number.
type signifyKey struct {
	number  string // 8 bytes
	private ed25519.PrivateKey
}

func newSignifyKey(number string) signifyKey {
	return signifyKey{number, ed25519.NewKeyFromSeed([]byte(strings.Repeat(number, ed25519.SeedSize/len(number))))}
}

func (k signifyKey) encode(b []byte) string {
	return "untrusted comment: test\n" + base64.StdEncoding.EncodeToString(append([]byte("Ed"+k.number), b...)) + "\n"
}

func (k signifyKey) public() string { return k.encode(k.private.Public().(ed25519.PublicKey)) }

func (k signifyKey) sign(list string) string { return k.encode(ed25519.Sign(k.private, []byte(list))) }

// minisignKey returns a public key, and a function that signs a file with the private one.
func minisignKey(t *testing.T) (public string, sign func([]byte) []byte) {
	t.Helper()
	pub, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return pub.String(), func(b []byte) []byte {
		r := minisign.NewReader(bytes.NewReader(b))
		if _, err := bytes.NewBuffer(nil).ReadFrom(r); err != nil {
			t.Fatal(err)
		}
		return r.Sign(private)
	}
}

// writeKeys writes a folder with keys and returns its parent.
func writeKeys(t *testing.T, folder string, files map[string]string) (keysDir string) {
	t.Helper()
	keysDir = t.TempDir()
	if err := os.Mkdir(filepath.Join(keysDir, folder), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(keysDir, folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return keysDir
}

func signatureReason(err error) signature.Reason {
	if e, ok := errors.AsType[*signature.Error](err); ok {
		return e.Reason
	}
	return ""
}

// TestDownloadsOfSignedFixtures downloads an image for each case of package signature from a server.
func TestDownloadsOfSignedFixtures(t *testing.T) {
	const dir = "signature/testdata/signed"
	read := func(name string) []byte {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	var cases []struct {
		Case, Shape, Data, Signature, Text string
		Scheme                             signature.Scheme
		Keys                               []string
		At                                 time.Time
		OK                                 *bool
		Reason                             signature.Reason
		ReasonAny                          []signature.Reason `json:"reason_any"`
		Signer                             string
		Warn                               string
	}
	if err := json.Unmarshal(read("cases.json"), &cases); err != nil {
		t.Fatal(err)
	}
	accepted, denied := 0, 0
	for _, c := range cases {
		if c.Text == "data/notes.txt" || c.Text == "data/index.json" {
			continue // no checksum lists
		}
		t.Run(c.Case, func(t *testing.T) {
			r := newFixture(t)
			r.client.now = func() time.Time { return c.At }
			files := map[string]string{}
			for _, folder := range c.Keys {
				entries, err := os.ReadDir(filepath.Join(dir, folder))
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					files[path.Base(folder)+"-"+e.Name()] = string(read(filepath.Join(folder, e.Name())))
				}
			}
			r.client.KeysDir = writeKeys(t, "vendor", files)
			req := Request{Verify: &Verify{Scheme: c.Scheme, Keys: "vendor"}}
			const image = "data/acme-os-9.1-20260518.x86_64.qcow2"
			serve := func(name string) string {
				return r.server.Serve("/"+strings.TrimSuffix(strings.TrimSuffix(path.Base(name), ".changed"), ".crlf"), fetchtest.Bytes(read(name)))
			}
			if c.Signature != "" && c.Data != "" {
				req.Verify.SignatureURL = r.server.Serve("/signature", fetchtest.Bytes(read(c.Signature)))
			}
			switch {
			case c.Data == "": // the list contains its signature
				req.URL, req.ChecksumURL = serve(image), serve(c.Signature)
			case strings.HasPrefix(path.Base(c.Data), "acme-os-"):
				req.URL, req.Verify.SignsFile = serve(c.Data), true
			default:
				req.URL, req.ChecksumURL = serve(image), serve(c.Data)
			}
			got, err := r.downloadSigned(req)
			switch {
			case err == nil && c.OK != nil && !*c.OK:
				t.Fatalf("accepted: %+v", got.Signature)
			case err == nil:
				accepted++
				s := got.Signature
				if s.Scheme != string(c.Scheme) || s.Signer == "" || c.Signer != "" && s.Signer != c.Signer || s.Warning != c.Warn && c.OK != nil {
					t.Errorf("got %+v, want %s %s", s, c.Signer, c.Warn)
				}
			case c.OK != nil && *c.OK:
				t.Fatal(err)
			default:
				denied++
				r.wantNoImage()
				want := slices.Concat(c.ReasonAny, []signature.Reason{c.Reason})
				// A web page is no signature, and may be another file a moment later.
				if e, ok := errors.AsType[*Error](err); ok && e.Class == Refused || c.Case == "web-page-instead" || c.Case == "empty-signature" {
					return
				}
				if reason := signatureReason(err); c.OK != nil && !slices.Contains(want, reason) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		})
	}
	if accepted < 25 || denied < 40 {
		t.Errorf("%d cases were accepted, and %d rejected", accepted, denied)
	}
}

func TestReadSignatureOfList(t *testing.T) {
	vendor, mallory := newSignifyKey("vendor!!"), newSignifyKey("mallory!")
	list, changed := hash256+"  a.img\n", other+"  a.img\n"
	unnamed, renamed := hash256+"\n", hash256+"  b.img\n"
	tests := []struct {
		name, list, sig string // sig is empty: no file
		declared        string // checksum; empty: none
		keys            map[string]string
		folder          string
		class           Class
		reason          signature.Reason
	}{
		{name: "detached", list: list, sig: vendor.sign(list)},
		{name: "embedded", list: vendor.sign(list) + list},
		{name: "changed list", list: changed, sig: vendor.sign(list), class: BadSource, reason: signature.BadSignature},
		{name: "changed embedded list", list: vendor.sign(list) + changed, class: BadSource, reason: signature.BadSignature},
		{name: "another key", list: list, sig: mallory.sign(list), class: BadSource, reason: signature.UnknownKey},
		{name: "unsigned lines before the signature", list: other + "  a.img\n" + vendor.sign(list) + list, class: BadSource,
			reason: signature.Malformed},
		{name: "a text as signature", list: list, sig: "not found", class: BadSource, reason: signature.Malformed},
		{name: "without a name", list: unnamed, sig: vendor.sign(unnamed), class: Refused},
		{name: "with another name", list: renamed, sig: vendor.sign(renamed), class: Refused},
		{name: "without a name, declared", list: unnamed, sig: vendor.sign(unnamed), declared: "sha256:" + hash256},
		{name: "without a name, that of another file", list: unnamed, sig: vendor.sign(unnamed), declared: "sha256:" + other, class: BadSource},
		{name: "no signature", list: list, class: Refused},
		{name: "too large signature", list: list, sig: strings.Repeat("a", maxChecksumFile+1), class: BadSource},
		{name: "no key", list: list, sig: vendor.sign(list), keys: map[string]string{}, class: BadConfig, reason: signature.NoKeys},
		{name: "damaged key", list: list, sig: vendor.sign(list), keys: map[string]string{"a.pub": vendor.public(), "b.pub": "?"},
			class: BadConfig, reason: signature.BadKeyFile},
		{name: "no folder", list: list, sig: vendor.sign(list), folder: "other", class: BadConfig, reason: signature.NoKeys},
		{name: "a folder elsewhere", list: list, sig: vendor.sign(list), folder: "../vendor", class: BadConfig},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			if tt.keys == nil {
				tt.keys = map[string]string{"vendor.pub": vendor.public()}
			}
			if tt.folder == "" {
				tt.folder = "vendor"
			}
			r.client.KeysDir = writeKeys(t, "vendor", tt.keys)
			if tt.sig != "" {
				r.server.Serve("/SHA256SUMS.sig", fetchtest.Bytes([]byte(tt.sig)))
			}
			req := Request{URL: "https://images.invalid/a.img", ChecksumURL: r.server.Serve("/SHA256SUMS", fetchtest.Bytes([]byte(tt.list))),
				Verify: &Verify{Scheme: signature.Signify, Keys: tt.folder}}
			if tt.declared != "" {
				req.Digest = mustParseDigest(t, tt.declared)
			}
			got, err := r.client.ReadSignature(context.Background(), req)
			if tt.class != 0 {
				wantError(t, err, tt.class, string(tt.reason))
				if reason := signatureReason(err); reason != tt.reason || got.Digest != req.Digest {
					t.Errorf("got reason %q, digest %v; want %q", reason, got.Digest, tt.reason)
				}
				return
			}
			if want := mustParseDigest(t, "sha256:"+hash256); err != nil || got.Digest != want {
				t.Fatalf("got %v, %v", got.Digest, err)
			}
			if by, err := got.SignatureCheck().End(); err != nil || by.Signer != "76656e646f722121" {
				t.Errorf("got %+v, %v", by, err)
			}
		})
	}
}

// OpenPGP and cosign have no suffix that all vendors use, so that nothing is guessed.
func TestSignatureAddressIsNotGuessed(t *testing.T) {
	list, err := parseAddress("https://images.invalid/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []signature.Scheme{signature.OpenPGP, signature.Cosign} {
		a, err := Verify{Scheme: scheme}.signatureAddress(list)
		if signatureReason(err) != signature.Unsigned {
			t.Errorf("%s: got %v, %v", scheme, a, err)
		}
	}
	for from, want := range map[string]string{
		"https://images.invalid/SHA256SUMS":           "https://images.invalid/SHA256SUMS.minisig",
		"https://images.invalid/a%20b/SHA256SUMS?x=1": "https://images.invalid/a%20b/SHA256SUMS.minisig?x=1",
		"s3::https://s3.invalid/bucket/SHA256SUMS":    "s3::https://s3.invalid/bucket/SHA256SUMS.minisig",
	} {
		list, err := parseAddress(from)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := (Verify{Scheme: signature.Minisign}).signatureAddress(list); err != nil || a.raw != want {
			t.Errorf("got %v, %v, want %s", a.raw, err, want)
		}
	}
}

// signedFile serves the signature of a file, and returns the request for the file at an address.
func (r *fixture) signedFile(t *testing.T, file []byte) Request {
	public, sign := minisignKey(t)
	r.client.KeysDir = writeKeys(t, "vendor", map[string]string{"vendor.pub": public})
	return Request{Verify: &Verify{Scheme: signature.Minisign, Keys: "vendor", SignsFile: true,
		SignatureURL: r.server.Serve("/x.minisig", fetchtest.Bytes(sign(file)))}}
}

func TestSignedFile(t *testing.T) {
	changed := slices.Clone(image)
	changed[len(changed)-1]++
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	if _, err := zip.Write(image); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	packed := buf.Bytes()
	// The same image in another packed file, which nobody signed.
	repacked := append(slices.Clone(packed[:9]), append([]byte{packed[9] ^ 1}, packed[10:]...)...)
	for _, tt := range []struct {
		name, path   string
		signed, sent []byte
		faults       []fetchtest.Fault
		good         bool
	}{
		{name: "plain", path: "/x.raw", signed: image, sent: image, good: true},
		{name: "plain, changed at the end", path: "/x.raw", signed: image, sent: changed},
		{name: "plain, interrupted", path: "/x.raw", signed: image, sent: image, faults: []fetchtest.Fault{cutOnce}, good: true},
		{name: "packed", path: "/x.raw.gz", signed: packed, sent: packed, good: true},
		{name: "packed, interrupted", path: "/x.raw.gz", signed: packed, sent: packed, faults: []fetchtest.Fault{cutOnce}, good: true},
		{name: "packed again", path: "/x.raw.gz", signed: packed, sent: repacked},
		{name: "packed, and the signature is that of the image", path: "/x.raw.gz", signed: image, sent: packed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			req := r.signedFile(t, tt.signed)
			req.URL = r.server.Serve(tt.path, fetchtest.Bytes(tt.sent), tt.faults...)
			c, err := r.downloadSigned(req)
			if !tt.good {
				if _, ok := errors.AsType[*disk.SignatureError](err); !ok || signatureReason(err) != signature.BadSignature {
					t.Errorf("got %v", err)
				}
				r.wantNoImage()
				return
			}
			if err != nil || c.Signature.Scheme != "minisign" {
				t.Fatalf("got %+v, %v", c.Signature, err)
			}
			r.wantImage(image)
		})
	}
}

// TestSignedFileAfterRestart checks that the bytes that an earlier process received are judged, too.
func TestSignedFileAfterRestart(t *testing.T) {
	for _, sent := range []bool{true, false} {
		r := newFixture(t)
		req := r.signedFile(t, image)
		first := slices.Clone(image)
		if !sent { // the earlier process received another file of the same length
			first[100]++
		}
		req.Digest = digest(image)
		req.URL = r.server.Serve("/x.raw", fetchtest.Bytes(first), stallOnce)
		r.downloadHalf(Request{URL: req.URL, Digest: req.Digest})
		req.URL = r.server.Serve("/x.raw", fetchtest.Bytes(image))
		req.Digest = ident.Digest{} // so that only the signature judges
		req, err := r.client.ReadSignature(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		p := r.openPart(disk.PartOptions{Check: req.SignatureCheck()})
		if p.Offset() == 0 {
			t.Fatal("the partial file is empty")
		}
		if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():])); err != nil {
			t.Fatal(err)
		}
		_, err = p.Commit(req.Digest)
		if (err == nil) != sent {
			t.Errorf("the first bytes were right: %v; got %v", sent, err)
		}
	}
}

// TestDownloadNeedsTheSignature checks that a caller that forgets to read the signature gets no image.
func TestDownloadNeedsTheSignature(t *testing.T) {
	r := newFixture(t)
	req := r.signedFile(t, image)
	req.URL = r.server.Serve("/x.raw", fetchtest.Bytes(image))
	c, err := r.commitSigned(req)
	wantError(t, err, BadConfig, "not read")
	if c.State == model.Ready {
		t.Error("the image is ready")
	}
	p := r.openPart(disk.PartOptions{Check: req.SignatureCheck()})
	if err := p.Begin(disk.PartSource{ID: "x", Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(image)); err != nil {
		t.Fatal(err)
	}
	if c, err := p.Commit(ident.Digest{}); err == nil {
		t.Errorf("committed %+v", c)
	}
	r.wantNoImage()
}

// TestSignedListAndDeclaredChecksum checks that both must hold, also if they have different algorithms.
func TestSignedListAndDeclaredChecksum(t *testing.T) {
	var buf bytes.Buffer
	zip := gzip.NewWriter(&buf)
	if _, err := zip.Write(image); err != nil {
		t.Fatal(err)
	}
	if err := zip.Close(); err != nil {
		t.Fatal(err)
	}
	packed := buf.Bytes()
	sum256 := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	d256 := func(b []byte) ident.Digest { return mustParseDigest(t, "sha256:"+sum256(b)) }
	hex512 := strings.TrimPrefix(digest(packed).String(), "sha512:")
	for _, tt := range []struct {
		name, path, list         string
		sent                     []byte
		declared, declaredPacked ident.Digest
		good                     bool
	}{
		{name: "the same", path: "/x.raw", list: sum256(image) + "  x.raw\n", sent: image, declared: d256(image), good: true},
		{name: "another", path: "/x.raw", list: sum256(packed) + "  x.raw\n", sent: image, declared: d256(image)},
		{name: "another algorithm", path: "/x.raw", list: sum256(image) + "  x.raw\n", sent: image, declared: digest(image), good: true},
		{name: "another algorithm, wrong list", path: "/x.raw", list: sum256(packed) + "  x.raw\n", sent: image, declared: digest(image)},
		{name: "another algorithm, wrong declaration", path: "/x.raw", list: sum256(image) + "  x.raw\n", sent: image, declared: digest(packed)},
		{name: "packed", path: "/x.raw.gz", list: sum256(packed) + "  x.raw.gz\n", sent: packed, declared: digest(image), good: true},
		{name: "packed, declared", path: "/x.raw.gz", list: hex512 + "  x.raw.gz\n", sent: packed, declaredPacked: d256(packed), good: true},
		{name: "packed, wrong list", path: "/x.raw.gz", list: sum256(image) + "  x.raw.gz\n", sent: packed, declared: digest(image)},
		{name: "packed, declared, wrong list", path: "/x.raw.gz", list: hex512[2:] + "00  x.raw.gz\n", sent: packed, declaredPacked: d256(packed)},
		{name: "packed, wrong declaration", path: "/x.raw.gz", list: hex512 + "  x.raw.gz\n", sent: packed, declaredPacked: d256(image)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			public, sign := minisignKey(t)
			r.client.KeysDir = writeKeys(t, "vendor", map[string]string{"vendor.pub": public})
			r.server.Serve("/SUMS.minisig", fetchtest.Bytes(sign([]byte(tt.list))))
			c, err := r.downloadSigned(Request{URL: r.server.Serve(tt.path, fetchtest.Bytes(tt.sent)),
				ChecksumURL: r.server.Serve("/SUMS", fetchtest.Bytes([]byte(tt.list))), Digest: tt.declared, PackedDigest: tt.declaredPacked,
				Verify: &Verify{Scheme: signature.Minisign, Keys: "vendor"}})
			if tt.good {
				if err != nil || c.Signature.Scheme != "minisign" {
					t.Errorf("got %+v, %v", c.Signature, err)
				}
				return
			}
			if _, ok := errors.AsType[*disk.ChecksumError](err); !ok {
				t.Errorf("got %v", err)
			}
			r.wantNoImage()
		})
	}
}
