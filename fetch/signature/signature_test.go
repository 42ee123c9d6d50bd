package signature_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	openpgp "github.com/ProtonMail/go-crypto/openpgp/v2"

	"github.com/seed-26586806/backing-image-manager/fetch/signature"
)

const signedDir = "testdata/signed"

// signedCase is a case of testdata/signed/cases.json.
type signedCase struct {
	Case      string
	Scheme    signature.Scheme
	Shape     string
	Data      string
	Signature string
	Keys      []string
	At        time.Time
	OK        *bool
	Reason    signature.Reason
	ReasonAny []signature.Reason `json:"reason_any"`
	Signer    string
	SignerAny []string `json:"signer_any"`
	Warn      signature.Reason
	Text      string
}

func readCases(t testing.TB) []signedCase {
	b, err := os.ReadFile(filepath.Join(signedDir, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []signedCase
	if err := json.Unmarshal(b, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func (c *signedCase) read(t testing.TB, name string) []byte {
	t.Helper()
	if name == "" {
		return nil
	}
	b, err := os.ReadFile(filepath.Join(signedDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// keysDir returns a folder with the files of all folders of the case.
func (c *signedCase) keysDir(t testing.TB) string {
	dir := t.TempDir()
	for _, k := range c.Keys {
		if err := os.CopyFS(filepath.Join(dir), os.DirFS(filepath.Join(signedDir, k))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// judge verifies as the shape of the case asks.
func (c *signedCase) judge(keys *signature.Keys, data, sig []byte) (text []byte, r signature.Result, err error) {
	name := filepath.Base(c.Data)
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".changed"), ".crlf")
	switch c.Shape {
	case "over-file":
		v, err := keys.NewVerifier(sig, name, c.At)
		if err != nil {
			return nil, r, err
		}
		for part := range slices.Chunk(data, 1000) {
			if _, err := v.Write(part); err != nil {
				return nil, r, err
			}
		}
		r, err = v.Verify()
		return nil, r, err
	case "clearsigned-list", "embedded-list":
		return keys.VerifyEmbedded(sig, c.At)
	default:
		r, err = keys.VerifyList(data, sig, name, c.At)
		return nil, r, err
	}
}

func TestSignedFiles(t *testing.T) {
	cases := readCases(t)
	if len(cases) != 94 {
		t.Errorf("%d cases, want 94", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Case, func(t *testing.T) {
			var text []byte
			var r signature.Result
			keys, err := signature.ReadKeys(c.keysDir(t), c.Scheme)
			if err == nil {
				text, r, err = c.judge(keys, c.read(t, c.Data), c.read(t, c.Signature))
			}
			var e *signature.Error
			if err != nil && !errors.As(err, &e) {
				t.Fatalf("error %v is not an *Error", err)
			}
			switch {
			case c.OK == nil: // either result is right, but it must be one
				if (err == nil) == (r.Signer == "") {
					t.Errorf("result %+v with error %v", r, err)
				}
			case !*c.OK:
				if err == nil {
					t.Fatalf("accepted, want %s", c.Reason)
				}
				if e.Reason != c.Reason && !slices.Contains(c.ReasonAny, e.Reason) {
					t.Errorf("reason %q, want %q", err, c.Reason)
				}
				if r != (signature.Result{}) || text != nil {
					t.Errorf("error with a result: %+v, %q", r, text)
				}
			case err != nil:
				t.Fatal(err)
			default:
				c.check(t, text, r)
			}
		})
	}
}

func (c *signedCase) check(t *testing.T, text []byte, r signature.Result) {
	if r.Scheme != c.Scheme || r.Signer == "" {
		t.Errorf("result %+v", r)
	}
	if signers := append(c.SignerAny, c.Signer); c.Scheme == signature.OpenPGP && !slices.Contains(signers, r.Signer) {
		t.Errorf("signer %s, want %s", r.Signer, signers)
	}
	if r.Warning != c.Warn {
		t.Errorf("warning %q, want %q", r.Warning, c.Warn)
	}
	if got, want := trimLines(text), trimLines(c.read(t, c.Text)); !bytes.Equal(got, want) {
		t.Errorf("text %q, want %q", got, want)
	}
}

// trimLines removes what a clearsigned message does not keep: blanks at line ends and the last line end.
func trimLines(b []byte) []byte {
	var lines []string
	for line := range strings.Lines(string(b)) {
		lines = append(lines, strings.TrimRight(line, " \t\r\n"))
	}
	return []byte(strings.TrimRight(strings.Join(lines, "\n"), "\n"))
}

// Text mode does not cover line ends, so an image could be changed under such a signature.
func TestTextModeIsForLists(t *testing.T) {
	c := signedCase{Shape: "over-file", Data: "data/SHA256SUMS", Keys: []string{"keys/vendor"}, At: time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)}
	keys, err := signature.ReadKeys(c.keysDir(t), signature.OpenPGP)
	if err != nil {
		t.Fatal(err)
	}
	_, _, err = c.judge(keys, c.read(t, c.Data), c.read(t, "openpgp/SHA256SUMS.textmode.asc"))
	wantReason(t, err, signature.Malformed)
}

// The trusted comment of minisign names the file, so that a signature cannot be moved to another file.
func TestMinisignNamesItsFile(t *testing.T) {
	c := signedCase{Keys: []string{"keys/minisign-vendor"}}
	keys, err := signature.ReadKeys(c.keysDir(t), signature.Minisign)
	if err != nil {
		t.Fatal(err)
	}
	list, sig := c.read(t, "data/SHA256SUMS"), c.read(t, "minisign/SHA256SUMS.minisig")
	r, err := keys.VerifyList(list, sig, "SHA256SUMS", time.Time{})
	if want := (signature.Result{Scheme: signature.Minisign, Signer: "66C112DCAC9AF69F", Time: time.Unix(1779098100, 0).UTC()}); err != nil || r != want {
		t.Errorf("got %+v, %v, want %+v", r, err, want)
	}
	_, err = keys.VerifyList(list, sig, "SHA256SUMS-2025", time.Time{})
	wantReason(t, err, signature.OtherFile)
}

// A signature that needs all bytes in memory is not for images.
func TestSignaturesInMemoryAreForLists(t *testing.T) {
	for scheme, file := range map[signature.Scheme]string{
		signature.Minisign: "minisign/SHA256SUMS.legacy.minisig",
		signature.Signify:  "signify/SHA256.detached.sig",
	} {
		c := signedCase{Keys: []string{"keys/" + string(scheme) + "-vendor"}}
		keys, err := signature.ReadKeys(c.keysDir(t), scheme)
		if err != nil {
			t.Fatal(err)
		}
		_, err = keys.NewVerifier(c.read(t, file), "SHA256SUMS", time.Time{})
		wantReason(t, err, signature.Malformed)
	}
}

func wantReason(t *testing.T, err error, want signature.Reason) {
	t.Helper()
	var e *signature.Error
	if !errors.As(err, &e) || e.Reason != want {
		t.Errorf("error %v, want reason %s", err, want)
	}
}

// TestFilesThatAreNoKeys reads what people put into a folder in place of a key. The message says what to do.
func TestFilesThatAreNoKeys(t *testing.T) {
	file, err := os.Open("testdata/signed/keys/vendor/vendor.asc")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	entities, err := openpgp.ReadArmoredKeyRing(file)
	if err != nil {
		t.Fatal(err)
	}
	var bare bytes.Buffer // as keys.openpgp.org sends a key whose address is not verified
	if err := entities[0].PrimaryKey.Serialize(&bare); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, text string
		scheme     signature.Scheme
		word       string
	}{
		{"key.gpg", bare.String(), signature.OpenPGP, "it has no user id, so that nothing says when it expires"},
		{"pubring.kbx", "\x00\x00\x00\x20\x01\x01\x00\x02KBXf\x00\x00\x00\x00\x5f\x5e\x10\x00\x5f\x5e\x10\x00\x00\x00\x00\x00\x00\x00\x00\x00", signature.OpenPGP, "gpg --export"},
		{"key.asc", "<!DOCTYPE html>\n<title>Not found</title>\n", signature.OpenPGP, "is a web page"},
		{"key.pub", "\n<html>", signature.Minisign, "is a web page"},
		{"empty.asc", "", signature.OpenPGP, "it contains no complete key"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.name), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := signature.ReadKeys(dir, c.scheme)
		if e, ok := errors.AsType[*signature.Error](err); !ok || e.Reason != signature.BadKeyFile || !strings.Contains(e.Text, c.word) || !strings.Contains(e.Text, c.name) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.word)
		}
	}
}
