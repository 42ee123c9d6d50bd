package load

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/schema"
)

func TestLacksVerify(t *testing.T) {
	const images = `images:
  signed: {source: {download: {url: "https://a.example/x"}}, verify: {minisign: {keys: alma}}}
  unsigned: {source: {download: {url: "https://a.example/x"}}}
  lab-1: {source: {download: {url: "https://a.example/x"}}}
  uploaded: {source: {upload: {}}}
  exempt-upload: {source: {upload: {}}}
  clone-of-signed: {source: {clone: {backingImage: signed, encryption: encrypt, secret: key}}}
  clone-of-clone: {source: {clone: {backingImage: clone-of-signed, encryption: decrypt, secret: key}}}
  clone-of-unsigned: {source: {clone: {backingImage: unsigned}}}
  clone-of-lab: {source: {clone: {backingImage: lab-1}}}
  lab-clone: {source: {clone: {backingImage: unsigned}}}
`
	required := mustLoad(t, "settings: {verify: {required: true, exempt: [\"lab-*\", exempt-upload]}}\n"+images)
	for name, want := range map[string]bool{
		"signed": false, "unsigned": true, "lab-1": false, "uploaded": true, "exempt-upload": false,
		"clone-of-signed": false, "clone-of-clone": false, "clone-of-unsigned": true, "clone-of-lab": false, "lab-clone": false,
		"undeclared": true,
	} {
		if got := required.LacksVerify(name); got != want {
			t.Errorf("%s: LacksVerify is %v", name, got)
		}
	}
	for _, settings := range []string{"", "settings: {verify: {exempt: [x1]}}\n"} {
		if c := mustLoad(t, settings+images); c.LacksVerify("unsigned") {
			t.Errorf("%q requires signatures", settings)
		}
	}
}

// SignsFile decides which bytes a signature is of by the declared addresses only, never by the answer of a server.
func TestSignsFile(t *testing.T) {
	for _, tt := range []struct {
		url, list, signature string
		want                 bool
	}{
		{url: "https://a/x.img", signature: "https://a/x.img.sig", want: true},
		{url: "https://a/x.img", signature: "https://b/other", want: true},
		{url: "https://a/x.img", list: "https://a/SHA256SUMS", want: false},
		{url: "https://a/x.img", list: "https://a/SHA256SUMS", signature: "https://a/SHA256SUMS.gpg", want: false},
		{url: "https://a/x.img", list: "https://a/SHA256SUMS", signature: "https://a/x.img.sig", want: true},
		{url: "https://a/x.img?token=1", list: "https://a/SHA256SUMS", signature: "https://b/y/x.img.asc?token=2", want: true},
		{url: "https://a/x.img", list: "https://a/x.img.sha256", signature: "https://a/x.img.sha256.asc", want: false},
		{url: "s3::https://a/b/x.img", list: "https://a/SHA256SUMS", signature: "s3://b/x.img.sig", want: true},
		{url: "https://a/x", list: "https://a/SHA256SUMS", signature: "https://a/x1.sig", want: false},
	} {
		if got := (schema.Verify{Scheme: schema.VerifyOpenPGP, SignatureURL: tt.signature}).SignsFile(schema.Download{URL: tt.url, ChecksumURL: tt.list}); got != tt.want {
			t.Errorf("url %s, list %s, signature %s: got %v", tt.url, tt.list, tt.signature, got)
		}
	}
}
