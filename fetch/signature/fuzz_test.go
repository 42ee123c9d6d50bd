package signature_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

var schemes = []signature.Scheme{signature.OpenPGP, signature.Minisign, signature.Signify, signature.Cosign}

// vendorKeys are the keys that made the good signatures.
var vendorKeys = map[signature.Scheme]string{signature.OpenPGP: "keys/vendor", signature.Minisign: "keys/minisign-vendor",
	signature.Signify: "keys/signify-vendor", signature.Cosign: "keys/cosign-vendor"}

func schemeIndex(s signature.Scheme) uint8 {
	for i := range schemes {
		if schemes[i] == s {
			return uint8(i)
		}
	}
	panic("no such scheme")
}

// FuzzSignature judges bytes as a signature of a file that nobody signed, and as a list that contains its signature.
func FuzzSignature(f *testing.F) {
	keys := map[signature.Scheme]*signature.Keys{}
	for s, dir := range vendorKeys {
		k, err := signature.ReadKeys(filepath.Join(signedDir, dir), s)
		if err != nil {
			f.Fatal(err)
		}
		keys[s] = k
	}
	good := map[string]bool{}
	for _, c := range readCases(f) {
		sig := c.read(f, c.Signature)
		f.Add(schemeIndex(c.Scheme), sig)
		if c.OK == nil || *c.OK {
			good[string(trimLines(c.read(f, c.Text)))] = true
		}
	}
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, scheme uint8, sig []byte) {
		k := keys[schemes[int(scheme)%len(schemes)]]
		var e *signature.Error
		if r, err := k.VerifyList([]byte("nobody signed this list\n"), sig, "SHA256SUMS", now); !errors.As(err, &e) {
			t.Errorf("got %+v, %v", r, err)
		}
		text, r, err := k.VerifyEmbedded(sig, now)
		if err == nil && (r.Signer == "" || !good[string(trimLines(text))]) || err != nil && !errors.As(err, &e) {
			t.Errorf("got %q, %+v, %v", text, r, err)
		}
	})
}

// FuzzKeys reads bytes as a file with keys. No key accepts a signature of nothing.
func FuzzKeys(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(signedDir, "keys/*/*"))
	if err != nil || len(files) == 0 {
		f.Fatal(files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for i := range schemes {
			f.Add(uint8(i), b)
		}
	}
	sig, err := os.ReadFile(filepath.Join(signedDir, "openpgp/SHA256SUMS.gpg"))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, scheme uint8, b []byte) {
		k, err := signature.NewKeys(schemes[int(scheme)%len(schemes)], []signature.KeyFile{{Name: "key", Bytes: b}})
		var e *signature.Error
		if err != nil && (!errors.As(err, &e) || e.Reason != signature.BadKeyFile) {
			t.Fatal(err)
		}
		if err != nil {
			return
		}
		if r, err := k.VerifyList(bytes.Repeat([]byte("x"), 10), sig, "SHA256SUMS", time.Now()); !errors.As(err, &e) {
			t.Errorf("got %+v, %v", r, err)
		}
	})
}
