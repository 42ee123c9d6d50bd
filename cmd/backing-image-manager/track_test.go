package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

// vendors are the recorded documents of vendors, and what an update must answer.
const vendors = "../../fetch/track/testdata/vendors"

// vendorCase is a case of its expected.json.
type vendorCase struct {
	Case, Root  string
	Optional    bool
	Verify      json.RawMessage
	Track       json.RawMessage
	ChecksumURL string
	Serve       map[string]string // files by address with a query
	Pinned      struct{ URL, Checksum string }
	Result      string
	ResultAny   []string `json:"result_any"`
	Reason      string
	ReasonAny   []string `json:"reason_any"`
	Expect      struct{ URL, Checksum string }
}

// readVendorCases returns the cases with declared values. With a signature, only those whose checksum list has the same
// address for all versions can be declared such that update changes them.
func readVendorCases(t testing.TB) []vendorCase {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(vendors, "expected.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Cases []vendorCase }
	if err := json.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	for i, c := range all.Cases {
		var line bytes.Buffer
		if err := json.Compact(&line, c.Track); err != nil {
			t.Fatal(err)
		}
		all.Cases[i].Track = line.Bytes()
		var track struct {
			Listing struct{ URL, Checksum string }
		}
		if err := json.Unmarshal(c.Track, &track); err != nil {
			t.Fatal(err)
		}
		if c.Verify != nil && track.Listing.URL != "" && !strings.Contains(track.Listing.Checksum, "{file}") {
			all.Cases[i].ChecksumURL = track.Listing.URL + track.Listing.Checksum
		}
	}
	return slices.DeleteFunc(all.Cases, func(c vendorCase) bool {
		return c.Optional || c.Verify != nil && c.ChecksumURL == "" || c.Pinned.URL == "" || c.Pinned.Checksum == ""
	})
}

// serveVendors serves the documents of all cases, each below its root, and returns the address.
func serveVendors(t testing.TB, cases []vendorCase) string {
	t.Helper()
	queries := map[string]string{}
	for _, c := range cases {
		for address, file := range c.Serve {
			queries["/"+c.Root+address] = filepath.Join(vendors, c.Root, file)
		}
	}
	files := http.FileServer(http.Dir(vendors))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if file, ok := queries[r.RequestURI]; ok {
			http.ServeFile(w, r, file)
			return
		}
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// declaration returns the case as an image with comments.
func (c vendorCase) declaration(name, base, url, checksum string) string {
	list := ""
	if c.ChecksumURL != "" {
		list = fmt.Sprintf("        checksumURL: '%s'\n", c.ChecksumURL)
	}
	text := fmt.Sprintf("  %s: # äöü\n    source:\n      download:\n        url: \"%s\"   # from the vendor\n%s    checksum: %s # of %s\n    track: %s\n",
		name, url, list, checksum, c.Pinned.Checksum, c.Track)
	if c.Verify != nil {
		text += fmt.Sprintf("    verify: %s\n", strings.Join(strings.Fields(string(c.Verify)), " "))
	}
	return strings.ReplaceAll(text, "{base}", base+"/"+c.Root)
}

const trackSettings = "settings: {allowLoopbackSources: true}\n\nimages:\n"

// runUpdate runs the command update and returns its result.
func runUpdate(t testing.TB, dir string) report.Updates {
	t.Helper()
	cmd := exec.Command("backing-image-manager", "update", dir, "-o", "json", "--keys-dir", filepath.Join(vendors, "keys"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var result report.Updates
	if err2 := json.Unmarshal(out, &result); err2 != nil {
		t.Fatalf("%v %v: %s", err, err2, stderr.String())
	}
	if refused := result.Count(report.NotEdited); (err != nil) != (refused > 0) {
		t.Errorf("%d images refused, and the exit status is %v", refused, err)
	}
	return result
}

// TestUpdateOfVendors updates the images of all recorded documents in one file, some of them with signatures. Only the intended values change, and a
// second run changes nothing.
func TestUpdateOfVendors(t *testing.T) {
	t.Parallel()
	cases := readVendorCases(t)
	base := serveVendors(t, cases)
	file := filepath.Join(t.TempDir(), "images.yaml")
	before := trackSettings
	for _, c := range cases {
		before += c.declaration(c.Case, base, c.Pinned.URL, c.Pinned.Checksum)
	}
	if err := os.WriteFile(file, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	first := runUpdate(t, filepath.Dir(file))
	after, updated, signed := trackSettings, 0, 0
	for _, c := range cases {
		i := slices.IndexFunc(first.Images, func(u report.ImageUpdate) bool { return u.Image == c.Case })
		if i < 0 {
			t.Fatalf("%s is missing", c.Case)
		}
		got := first.Images[i]
		if !slices.Contains(append(c.ResultAny, c.Result), string(got.Result)) {
			t.Errorf("%s: the result is %s, not %s: %s", c.Case, got.Result, c.Result, got.Message)
		}
		url, checksum := c.Pinned.URL, c.Pinned.Checksum
		switch got.Result {
		case report.Updated:
			updated++
			if c.Verify != nil {
				signed++
			}
			url, checksum = cmp.Or(c.Expect.URL, url), c.Expect.Checksum
		case report.NotEdited:
			if want := append(c.ReasonAny, c.Reason); c.Reason != "" && !slices.Contains(want, got.Reason) {
				t.Errorf("%s: the reason is %s, not %s", c.Case, got.Reason, want)
			}
		}
		after += c.declaration(c.Case, base, url, checksum)
	}
	if updated < 12 || signed == 0 {
		t.Errorf("only %d images were updated, %d of them by signed lists", updated, signed)
	}
	for run := range 2 {
		got, err := os.ReadFile(file)
		if err != nil || string(got) != after {
			t.Fatalf("after run %d (%v), the file is\n%s\nand not\n%s", run+1, err, got, after)
		}
		if run == 0 {
			second := runUpdate(t, filepath.Dir(file))
			if n := second.Count(report.Updated); n > 0 || second.Count(report.NotEdited) != first.Count(report.NotEdited) {
				t.Errorf("the second run updates %d images, and refuses %d", n, second.Count(report.NotEdited))
			}
		}
	}
}

// TestUpdateOfAVirtualMachineImage updates a manifest of Harvester. With its BackingImage, the manifest does not declare
// the image, and its annotation has no effect.
func TestUpdateOfAVirtualMachineImage(t *testing.T) {
	t.Parallel()
	cases := readVendorCases(t)
	c := cases[slices.IndexFunc(cases, func(c vendorCase) bool { return c.Case == "debian-newer" })]
	base := serveVendors(t, cases)
	bare := func(checksum string) string { return strings.TrimPrefix(checksum, "sha512:") }
	manifest := func(url, checksum string) string {
		return strings.ReplaceAll(fmt.Sprintf(`apiVersion: harvesterhci.io/v1beta1
kind: VirtualMachineImage
metadata:
  annotations:
    backing-image-manager/track: |
      # where Debian publishes
      %s
  name: debian
  namespace: default
spec:
  checksum: "%s"
  displayName: Debian 12 # for people
  sourceType: download
  url: %s
`, c.Track, bare(checksum), url), "{base}", base+"/"+c.Root)
	}
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("settings.yaml", "settings: {allowLoopbackSources: true}\n")
	write("image.yaml", manifest(c.Pinned.URL, c.Pinned.Checksum))
	result := runUpdate(t, dir)
	got, err := os.ReadFile(filepath.Join(dir, "image.yaml"))
	if want := manifest(c.Expect.URL, c.Expect.Checksum); err != nil || string(got) != want {
		t.Fatalf("%+v (%v): the manifest is\n%s\nand not\n%s", result, err, got, want)
	}
	if second := runUpdate(t, dir); len(second.Images) != 1 || second.Images[0].Result != report.UpToDate {
		t.Errorf("the second run: %+v", second)
	}

	write("longhorn.yaml", strings.ReplaceAll(fmt.Sprintf(`apiVersion: longhorn.io/v1beta2
kind: BackingImage
metadata: {name: default-debian}
spec: {sourceType: download, sourceParameters: {url: "%s"}, checksum: "%s"}
`, c.Expect.URL, bare(c.Expect.Checksum)), "{base}", base+"/"+c.Root))
	if third := runUpdate(t, dir); len(third.Images) != 0 {
		t.Errorf("the annotation has an effect: %+v", third)
	}
	out, err := exec.Command("backing-image-manager", "validate", dir).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "metadata.annotations.backing-image-manager/track: is not used: the BackingImage declares the image") {
		t.Errorf("%v: %s", err, out)
	}
}
