package track_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/fetch/track"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// vendorCase is a case of testdata/vendors/expected.json.
type vendorCase struct {
	Case, Root, Vendor string
	Optional           bool
	Track              schema.Track
	Verify             *struct {
		OpenPGP struct{ Keys, SignatureURL string }
	}
	ChecksumURL string
	Serve       map[string]string
	Pinned      struct{ Version, URL, Checksum string }
	Result      string
	ResultAny   []string `json:"result_any"`
	Reason      string
	ReasonAny   []string `json:"reason_any"`
	Warn        string
	Expect      struct {
		Version, URL, Checksum string
		PackedChecksum         string `json:"packed_checksum"`
	}
}

func readCases(t *testing.T) []vendorCase {
	t.Helper()
	data, err := os.ReadFile("testdata/vendors/expected.json")
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Cases []vendorCase }
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	return all.Cases
}

// with returns the case with the address of a server for "{base}".
func (c vendorCase) with(t *testing.T, base string) vendorCase {
	t.Helper()
	encoded, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var replaced vendorCase
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(encoded), "{base}", base)), &replaced); err != nil {
		t.Fatal(err)
	}
	return replaced
}

// serveVendor serves a snapshot.
func serveVendor(t testing.TB, c vendorCase) *httptest.Server {
	t.Helper()
	root := filepath.Join("testdata/vendors", filepath.FromSlash(c.Root))
	files := http.FileServer(http.Dir(root))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if file, ok := c.Serve[r.RequestURI]; ok {
			http.ServeFile(w, r, filepath.Join(root, filepath.FromSlash(file)))
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server
}

func TestVendors(t *testing.T) {
	ran, signed := 0, 0
	for _, c := range readCases(t) {
		if c.Optional || c.Vendor == "flatcar" && c.Verify != nil { // its lists with and without a signature have different names
			continue
		}
		ran++
		t.Run(c.Case, func(t *testing.T) {
			c = c.with(t, serveVendor(t, c).URL)
			m := track.Image{URL: c.Pinned.URL, ChecksumURL: c.ChecksumURL}
			if c.Pinned.Checksum != "" {
				var err error
				if m.Checksum, err = ident.ParseDigest(c.Pinned.Checksum); err != nil {
					t.Fatal(err)
				}
			}
			if c.Verify != nil {
				m.Verify = &fetch.Verify{Scheme: signature.OpenPGP, Keys: c.Verify.OpenPGP.Keys, SignatureURL: c.Verify.OpenPGP.SignatureURL}
				signed++
			}
			resolver := track.NewResolver(&fetch.Client{AllowLoopback: true, KeysDir: "testdata/vendors/keys"})
			answer, err := resolver.Resolve(t.Context(), c.Track, m)
			c.check(t, m, answer, err)
		})
	}
	if ran < 50 || signed < 10 {
		t.Errorf("only %d cases ran, %d with signatures", ran, signed)
	}
}

// check compares an answer with what the case expects.
func (c vendorCase) check(t *testing.T, m track.Image, answer track.Answer, err error) {
	t.Helper()
	result := "unchanged"
	if answer.Update {
		result = "update"
	}
	if err != nil {
		result = "refused"
	}
	if !slices.Contains(append(c.ResultAny, c.Result), result) {
		t.Fatalf("the result is %s, not %s%s: %+v, %v", result, c.Result, c.ResultAny, answer, err)
	}
	switch result {
	case "refused":
		refusal, ok := errors.AsType[*track.Refusal](err)
		if !ok || c.Reason+strings.Join(c.ReasonAny, "") != "" && !slices.Contains(append(c.ReasonAny, c.Reason), string(refusal.Reason)) {
			t.Errorf("the reason is %v, not %s%s", err, c.Reason, c.ReasonAny)
		}
	case "update":
		want, err := ident.ParseDigest(c.Expect.Checksum)
		if err != nil {
			t.Fatal(err)
		}
		if answer.URL != c.Expect.URL || answer.Checksum != want || answer.Version != c.Expect.Version {
			t.Errorf("the answer is\n%s\n%s\n%s\nand not\n%s\n%s\n%s", answer.Version, answer.URL, answer.Checksum, c.Expect.Version, c.Expect.URL, want)
		}
		if answer.Pinned != c.Pinned.Version {
			t.Errorf("the declared version is %q, not %q", answer.Pinned, c.Pinned.Version)
		}
	case "unchanged":
		if answer.URL != m.URL || answer.Checksum != m.Checksum {
			t.Errorf("the unchanged answer is %+v", answer)
		}
	}
	if incomplete := len(answer.PassedOver) > 0; result != "refused" && incomplete != (c.Warn == "incomplete") {
		t.Errorf("passed over: %v", answer.PassedOver)
	}
}
