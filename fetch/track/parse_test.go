package track

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema"
)

func TestQueriesOfSignaturesStayOnTheirServer(t *testing.T) {
	m := Image{Verify: &fetch.Verify{SignatureURL: "https://example.com/1/SUMS.asc?token=secret"}}
	for list, want := range map[string]string{
		"https://example.com/2/SUMS": "https://example.com/2/SUMS.asc?token=secret",
		"https://example.org/2/SUMS": "https://example.org/2/SUMS.asc",
		"http://example.com/2/SUMS":  "http://example.com/2/SUMS.asc",
	} {
		if got, err := signatureOf(list, m); got != want || err != nil {
			t.Errorf("%s: %s, %v", list, got, err)
		}
	}
}

func TestVersionsAreOrdered(t *testing.T) {
	ordered := []version{
		{"3.23.2", "r0"}, {"3.23.2", "r2"}, {"3.23.2", "r10"}, {"3.23.10", "r0"},
		{"9.9"}, {"9.10"}, {"43.20260525.3.9"}, {"43.20260525.3.10"},
		{"20260518_05:24"}, {"20260518_17:10"}, {"20260602"}, {"20260602.2"}, {"20260602.10"}, {"20260602-2132"},
		{"99999999999999999999999999"}, {"100000000000000000000000000"},
	}
	for i, a := range ordered {
		for j, b := range ordered {
			c := a.compare(b)
			if c != -b.compare(a) {
				t.Errorf("%v and %v have no order", a, b)
			}
			// The lists with different forms are not compared with each other.
			if i+1 == j && sameForm(a, b) && c >= 0 {
				t.Errorf("%v is not before %v", a, b)
			}
		}
	}
	if (version{"010"}).compare(version{"10"}) != 0 {
		t.Error("a zero in front changes a number")
	}
}

func sameForm(a, b version) bool {
	return strings.Count(a.String(), ".") == strings.Count(b.String(), ".")
}

func TestVersionInAnAddress(t *testing.T) {
	for _, c := range []struct{ declared, path, known, want string }{
		{"/m/release-20260518/a-20260518.img", "release-20260602/a-20260602.img", "20260602", "20260518"},
		{"/m/release-20260518/a-20260519.img", "release-20260602/a-20260602.img", "20260602", ""},
		{"/x/20260518_05:24/disk.qcow2", "x/20260602_17:10/disk.qcow2", "20260602_17:10", "20260518_05:24"},
		{"/latest/disk.qcow2", "20260602/disk.qcow2", "20260602", ""},
		{"/1/disk.qcow2x", "2/disk.qcow2", "2", ""},
		{"/a.qcow2", "a.qcow2", "7", ""},
		{"/a.qcow2", "a.qcow2", "", ""},
		{"/v2/disk1.img", "v1/disk1.img", "1", "2"},
		{"/v2/disk2.img", "v1/disk1.img", "1", "2"},
		{"/1/" + strings.Repeat("1/", 600), strings.Repeat("2/", 600), "2", ""},
		{"/a-" + strings.Repeat("1", 200), "a-2", "2", ""},
		{"/m/ubuntu-24.04-20260518.img", "ubuntu-24.04-20260602.img", "20260602", "20260518"},
		{"/24.04-20260518.img", "24.04-20260602.img", "20260602", "20260518"},
		{"/24.04/20260518.1.img", "20260602.img", "20260602", "20260518.1"},
		{"/a-20260518-.img", "a-20260602.img", "20260602", ""},
		{"/a-2026..05.img", "a-20260602.img", "20260602", ""},
		{"20260518.img", "20260602.img", "20260602", "20260518"},
		{"/1-1.img", "1" + strings.Repeat("-1", 3) + ".img", "1", ""},
		{"/2-2-2-2.img", "1" + strings.Repeat("-1", 3) + ".img", "1", "2"},
	} {
		if got, _ := versionIn(c.declared, c.path, c.known); got != c.want {
			t.Errorf("%s has the version %q, not %q", c.declared, got, c.want)
		}
	}
}

// A group that takes no part in a match does not move the groups after it.
func TestGroupsThatTakeNoPart(t *testing.T) {
	p, err := parsePattern(`a-(\d+)(?:-sp(\d+))?-r(\d+)\.raw`)
	if err != nil {
		t.Fatal(err)
	}
	older, newer := p.version("/x/a-1-r7.raw"), p.version("/x/a-1-sp1-r2.raw")
	if older.compare(newer) >= 0 || older.String() != "1-7" || newer.String() != "1-1-2" {
		t.Errorf("%v is not before %v", older, newer)
	}
}

// TestJudge compares the answers about random lists of versions with the rules.
func TestJudge(t *testing.T) {
	sum := func(n int) ident.Digest {
		d, err := ident.ParseDigest(fmt.Sprintf("sha256:%064x", n+1))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	results := map[Reason]int{}
	for seed := range uint64(20_000) {
		r := rand.New(rand.NewPCG(seed, 1))
		pinned := r.IntN(8)
		m := Image{URL: fmt.Sprintf("https://example.com/%d", pinned), Checksum: sum(pinned)}
		complete, times := map[int]bool{}, map[int]int{}
		var candidates []candidate
		for range r.IntN(6) {
			n := r.IntN(8)
			times[n]++
			if times[n] == 1 {
				complete[n] = r.IntN(3) > 0
			}
			published := sum(n)
			if n == pinned && seed%5 == 0 {
				published = sum(100)
			}
			candidates = append(candidates, candidate{version{fmt.Sprint(n)}, fmt.Sprint(n), func(context.Context) (found, error) {
				if !complete[n] {
					return found{}, errIncomplete
				}
				return found{version: version{fmt.Sprint(n)}, url: fmt.Sprintf("https://example.com/%d", n), checksums: []ident.Digest{published}}, nil
			}})
		}
		r.Shuffle(len(candidates), func(i, j int) { candidates[i], candidates[j] = candidates[j], candidates[i] })
		// The rules, from the newest version down.
		update, passed, reason := -1, 0, Reason("")
		switch {
		case len(candidates) == 0:
			reason = NothingMatches
		default:
			n := 7
			for ; n >= pinned && (times[n] == 0 || times[n] == 1 && !complete[n] && n > pinned); n-- {
				passed += times[n]
			}
			switch {
			case n < pinned && passed > 0:
				reason = NoChecksum
			case n < pinned:
				reason = OlderThanPinned
			case times[n] > 1:
				reason = Ambiguous
			case n > pinned:
				update = n
			case complete[n] && seed%5 == 0:
				reason = ChangedInPlace
			}
		}
		answer, err := judge(t.Context(), m, version{fmt.Sprint(pinned)}, candidates)
		refusal, _ := errors.AsType[*Refusal](err)
		switch {
		case reason != "":
			if refusal == nil || refusal.Reason != reason {
				t.Fatalf("seed %d: %+v, %v, want %s", seed, answer, err, reason)
			}
		case err != nil || answer.Update != (update >= 0) || answer.Update && (answer.URL != fmt.Sprintf("https://example.com/%d", update) || answer.Checksum != sum(update)):
			t.Fatalf("seed %d: %+v, %v, want %d", seed, answer, err, update)
		}
		results[reason]++
	}
	for _, reason := range []Reason{"", NothingMatches, NoChecksum, OlderThanPinned, Ambiguous, ChangedInPlace} {
		if results[reason] < 100 {
			t.Errorf("only %d lists have the result %q", results[reason], reason)
		}
	}
}

// The first values may be zeros.
func TestDeclaredZerosAreReplaced(t *testing.T) {
	zeros, err := ident.ParseDigest("sha256:" + strings.Repeat("0", 64))
	ones, err2 := ident.ParseDigest("sha256:" + strings.Repeat("1", 64))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	m := Image{URL: "https://example.com/1", Checksum: zeros}
	answer, err := judge(t.Context(), m, version{"1"}, []candidate{{version{"1"}, "1", func(context.Context) (found, error) {
		return found{version: version{"1"}, url: m.URL, checksums: []ident.Digest{ones}}, nil
	}}})
	if err != nil || !answer.Update || answer.Checksum != ones {
		t.Errorf("got %+v, %v", answer, err)
	}
}

// A server that sends a document too slowly does not stop an update.
func TestSlowDocument(t *testing.T) {
	done := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "<a href=")
		w.(http.Flusher).Flush()
		select {
		case <-done:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(done)
	r := NewResolver(&fetch.Client{AllowLoopback: true})
	r.maxTime = 100 * time.Millisecond
	_, err := r.Resolve(t.Context(), schema.Track{Listing: &schema.TrackListing{URL: server.URL + "/?token=secret", Match: "(.*)"}}, Image{})
	refusal, ok := errors.AsType[*Refusal](err)
	if !ok || refusal.Reason != Unreadable || !strings.Contains(err.Error(), "within 100ms") || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestLongNamesAreRefused(t *testing.T) {
	long := strings.Repeat("ü", 5_000_000)
	if _, err := parseStreamsVersions(map[string]json.RawMessage{"p": fmt.Appendf(nil, `{"versions": {%q: {}}}`, long)}, "p"); err == nil {
		t.Error("a long serial was accepted")
	}
	if _, _, err := parseCoreOS(fmt.Appendf(nil, `{"stream": "s", "architectures": {"": {"artifacts": {"": {"release": %q, "formats": {"": {"disk": {}}}}}}}}`, long), schema.TrackCoreOS{}); err == nil {
		t.Error("a long release was accepted")
	}
	_, err := parseStreamsIndex(fmt.Appendf(nil, `{"format": "index:1.0", "index": {"": {"datatype": "image-downloads", "format": "products:1.0", "path": %q, "products": ["p"]}}}`, long), "p")
	if err == nil || len(err.Error()) > 1000 || !utf8.ValidString(err.Error()) {
		t.Errorf("a long path was accepted, or the error is long (%t)", err == nil)
	}
	if isName(long) {
		t.Error("a long name was accepted")
	}
}

func TestLongListingsAreRefused(t *testing.T) {
	from := &url.URL{Scheme: "https", Host: "example.com", Path: "/"}
	for n, want := range map[int]bool{maxNames: true, maxNames + 2: false} {
		page, table := strings.Repeat("<a href=a>", n), `{"data": [{"name": "a"}`+strings.Repeat(`,{"name": "a"}`, n-1)+"]}"
		names, err := parseLinks([]byte(page), from)
		names2, err2 := parseNames([]byte(table))
		if (err == nil) != want || (err2 == nil) != want || want && (len(names) != 1 || len(names2) != 1) {
			t.Errorf("%d files: %d names, %v; %d names, %v", n, len(names), err, len(names2), err2)
		}
	}
}

// seeds adds the documents of the vendors to a fuzz corpus.
func seeds(f *testing.F, pattern string) {
	f.Helper()
	files, err := filepath.Glob("testdata/vendors/" + pattern)
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds match %s", pattern)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

// checkAddress fails unless an address is below a folder, and is what a server receives.
func checkAddress(t *testing.T, base *url.URL, addr string) {
	t.Helper()
	u, err := url.Parse(addr)
	if err != nil || u.Host != base.Host || u.Scheme != base.Scheme || !strings.HasPrefix(u.Path, base.Path) ||
		strings.Contains("/"+u.Path+"/", "/../") || u.RawQuery != "" || u.Fragment != "" || !isPlain(addr) {
		t.Errorf("the address is %q (%v)", addr, err)
	}
}

var fuzzBase = &url.URL{Scheme: "https", Host: "example.com", Path: "/images/"}

func FuzzSimplestreams(f *testing.F) {
	seeds(f, "ubuntu/*/releases/streams/v1/*download.json")
	seeds(f, "incus/*/streams/v1/images.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		products, _ := parseStreamsProducts(data)
		for _, product := range []string{"com.ubuntu.cloud:server:24.04:amd64", "debian:bookworm:amd64:cloud"} {
			versions, err := parseStreamsVersions(products, product)
			if err != nil {
				continue
			}
			pinnedSerial(Image{URL: "https://example.com/a-1/b-1"}, versions, "disk1.img")
			for _, item := range []string{"disk1.img", "disk-kvm.img"} {
				for _, c := range streamsCandidates(fuzzBase, versions, item, "") {
					if found, err := c.resolve(t.Context()); err == nil {
						checkAddress(t, fuzzBase, found.url)
					}
				}
			}
		}
	})
}

func FuzzVersionInAnAddress(f *testing.F) {
	f.Add("/m/release-20260518/a-20260518.img", "release-20260602/a-20260602.img", "20260602")
	f.Add("/v2/disk1.img", "v1/disk1.img", "1")
	f.Fuzz(func(t *testing.T, declared, path, known string) {
		v, ok := versionIn(declared, path, known)
		if ok && (!isNumbers(v) || !strings.Contains(declared, v) || !strings.Contains(path, known)) {
			t.Errorf("%q is not the version of %q", v, declared)
		}
		// The path of a release has its version, unless that stands there several times.
		if isNumbers(known) && len(path) <= maxName && len(known) <= maxVersion && strings.Count(path, known) == 1 {
			if _, ok := versionIn("/x/"+path, path, known); !ok {
				t.Errorf("%q has no version", path)
			}
		}
	})
}

func FuzzStreamsIndex(f *testing.F) {
	seeds(f, "*/*/streams/v1/index.json")
	seeds(f, "ubuntu/*/releases/streams/v1/index.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		if path, err := parseStreamsIndex(data, "debian:bookworm:amd64:cloud"); err == nil {
			checkAddress(t, fuzzBase, below(fuzzBase, path).String())
		}
	})
}

func FuzzCoreOS(f *testing.F) {
	seeds(f, "fcos/*/streams/stable.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		c := schema.TrackCoreOS{URL: "https://example.com/stable.json", Arch: "x86_64", Artifact: "qemu"}
		release, file, err := parseCoreOS(data, c)
		if err != nil {
			return
		}
		u, err := fileLocation(c.URL, file.Location)
		if err == nil && (u.Host != "example.com" && u.Host != coreOSBuilds || u.Scheme != "https" || release == "") {
			t.Errorf("the address is %s", u)
		}
	})
}

func FuzzListing(f *testing.F) {
	seeds(f, "*/*/*/*/*/*/index.html")
	seeds(f, "opensuse/*/tumbleweed/appliances/index.json")
	f.Add([]byte(`<a href="%2e%2e/a">x</a><a href=a%00b>x</a><a href="a%0ab">`))
	from := &url.URL{Scheme: "https", Host: "mirror.example.org", Path: "/17/"}
	f.Fuzz(func(t *testing.T, data []byte) {
		names, _ := parseLinks(data, from)
		more, _ := parseNames(data)
		for _, name := range append(names, more...) {
			checkAddress(t, fuzzBase, below(fuzzBase, name).String())
		}
	})
}

func FuzzChecksumList(f *testing.F) {
	seeds(f, "rocky/*/pub/rocky/9/images/x86_64/CHECKSUM")
	seeds(f, "http/*/images/SHA256SUMS")
	seeds(f, "flatcar/*/amd64-usr/*/*.DIGESTS")
	f.Fuzz(func(t *testing.T, data []byte) {
		sums, _ := listedChecksums(data, "https://example.com/SHA256SUMS", "https://example.com/golden.qcow2", Image{})
		for _, d := range sums {
			if !bytes.HasPrefix(data, []byte("\xff\xfe")) && !bytes.HasPrefix(data, []byte("\xfe\xff")) && // UTF-16
				!strings.Contains(strings.ToLower(string(data)), strings.TrimPrefix(d.String(), "sha256:")) {
				t.Errorf("the checksum %s is not in the list", d)
			}
		}
	})
}
