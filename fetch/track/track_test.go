package track_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/track"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const sum1 = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

func serve(t testing.TB, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server.URL
}

func resolver() *track.Resolver { return track.NewResolver(&fetch.Client{AllowLoopback: true}) }

func listingOf(base string) schema.Track {
	return schema.Track{Listing: &schema.TrackListing{URL: base + "/images/", Match: `a-(\d+)\.qcow2`, Checksum: "SHA256SUMS"}}
}

func digits(d string) string { return strings.TrimPrefix(d, "sha256:") }

func TestListingMayRedirectToAMirror(t *testing.T) {
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/images/":
			http.Redirect(w, r, "/mirror/17/", http.StatusFound)
		case "/mirror/17/":
			fmt.Fprint(w, `<a href="a-1.qcow2">a</a> <a href="/mirror/17/a-2.qcow2">a</a> <a href="/images/a-3.qcow2">a</a>`)
		case "/images/SHA256SUMS":
			fmt.Fprintf(w, "%s  a-2.qcow2\n", digits(sum1))
		default:
			http.NotFound(w, r)
		}
	})
	answer, err := resolver().Resolve(t.Context(), listingOf(base), track.Image{})
	if err != nil || answer.URL != base+"/images/a-2.qcow2" || answer.Checksum.String() != sum1 {
		t.Errorf("got %+v, %v: the address must be below that of the tracker", answer, err)
	}
}

func TestLinksElsewhereAreIgnored(t *testing.T) {
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/images/" {
			fmt.Fprintf(w, "%s  a-1.qcow2\n", digits(sum1))
			return
		}
		fmt.Fprint(w, `<a href="a-1.qcow2">a</a> <a href="https://example.org/images/a-9.qcow2">a</a> <a href="../a-9.qcow2">a</a>
<a href="a-9.qcow2?x=1">a</a> <a href="a-9.qcow2#x">a</a> <a href="//example.org/images/a-9.qcow2">a</a> <a href="sub/a-9.qcow2">a</a>
<a href="..%2fa-9.qcow2">a</a> <a href="javascript:a-9.qcow2">a</a> <p href="a-9.qcow2">a</p> <!-- <a href="a-9.qcow2"> -->`)
	})
	answer, err := resolver().Resolve(t.Context(), listingOf(base), track.Image{})
	if err != nil || answer.URL != base+"/images/a-1.qcow2" {
		t.Errorf("got %+v, %v", answer, err)
	}
}

func TestRefusals(t *testing.T) {
	const page = `<a href="a-1.qcow2">a</a>`
	lists := func(list string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/images/" {
				fmt.Fprint(w, page)
				return
			}
			fmt.Fprint(w, list)
		}
	}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		pinned string
		want   track.Reason
	}{
		"server error":     {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "", track.Unreadable},
		"no such folder":   {http.NotFound, "", track.Unreadable},
		"no list":          {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<p>Please sign in</p>") }, "", track.Malformed},
		"only weak sums":   {lists("d41d8cd98f00b204e9800998ecf8427e  a-1.qcow2\n"), "", track.NoChecksum},
		"BLAKE2b":          {lists("# BLAKE2B HASH\n" + strings.Repeat("2", 128) + "  a-1.qcow2\n"), "", track.NoChecksum},
		"another name":     {lists(digits(sum1) + "  a-0.qcow2\n"), "", track.NoChecksum},
		"two algorithms":   {lists(digits(sum1) + "  a-1.qcow2\n" + strings.Repeat("2", 128) + "  a-1.qcow2\n"), "a-1.qcow2", track.ChangedInPlace},
		"cut checksum":     {lists("SHA256 (a-1.qcow2) = 1111\n"), "", track.Malformed},
		"web page as list": {lists("<html>no</html>"), "", track.Malformed},
		"older":            {lists(digits(sum1) + "  a-1.qcow2\n"), "a-2.qcow2", track.OlderThanPinned},
		"large":            {func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 17<<20)) }, "", track.Unreadable},
		"listed twice":     {lists(digits(sum1) + "  a-1.qcow2\n" + strings.Repeat("2", 64) + "  a-1.qcow2\n"), "", track.Ambiguous},
		"loop":             {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, "", track.Unreadable},
		"redirect to file": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "file:///etc/", http.StatusFound) }, "", track.Unreadable},
	} {
		t.Run(name, func(t *testing.T) {
			base := serve(t, c.serve)
			declared, _ := ident.ParseDigest("sha256:" + strings.Repeat("3", 64)) // the list may have a SHA-512 besides
			_, err := resolver().Resolve(t.Context(), listingOf(base), track.Image{URL: base + "/images/" + c.pinned, Checksum: declared})
			refusal, ok := errors.AsType[*track.Refusal](err)
			if !ok || refusal.Reason != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}

func TestPackedFileWithTheChecksumOfTheUnpackedOne(t *testing.T) {
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/images/" {
			fmt.Fprint(w, `<a href="a-1.raw.xz">a</a>`)
			return
		}
		fmt.Fprintf(w, "%s  a-1.raw.xz\n%s  a-1.raw\n", strings.Repeat("2", 64), digits(sum1))
	})
	tracker := listingOf(base)
	tracker.Listing.Match = `a-(\d+)\.raw\.xz`
	answer, err := resolver().Resolve(t.Context(), tracker, track.Image{})
	if err != nil || answer.Checksum.String() != sum1 {
		t.Errorf("got %+v, %v", answer, err)
	}
}

func TestAddressWithoutAVersion(t *testing.T) {
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/images/" {
			fmt.Fprint(w, `<a href="a.qcow2">a</a>`)
			return
		}
		fmt.Fprintf(w, "%s  a.qcow2\n", digits(sum1))
	})
	tracker := listingOf(base)
	tracker.Listing.Match = `a(\d*)\.qcow2`
	m := track.Image{URL: base + "/images/a.qcow2"}
	if answer, err := resolver().Resolve(t.Context(), tracker, m); err != nil || !answer.Update {
		t.Errorf("got %+v, %v: the checksum is missing", answer, err)
	}
	m.Checksum, _ = ident.ParseDigest(sum1)
	if answer, err := resolver().Resolve(t.Context(), tracker, m); err != nil || answer.Update {
		t.Errorf("got %+v, %v: nothing is new", answer, err)
	}
	m.Checksum, _ = ident.ParseDigest("sha256:" + strings.Repeat("2", 64))
	_, err := resolver().Resolve(t.Context(), tracker, m)
	if refusal, ok := errors.AsType[*track.Refusal](err); !ok || refusal.Reason != track.ChangedInPlace {
		t.Errorf("got %v", err)
	}
}

func TestDocumentsAreReadOnce(t *testing.T) {
	var mu sync.Mutex
	requests := map[string]int{}
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		requests[r.URL.Path]++
		mu.Unlock()
		if r.URL.Path == "/images/" {
			fmt.Fprint(w, `<a href="a-1.qcow2">a</a>`)
			return
		}
		fmt.Fprintf(w, "%s  a-1.qcow2\n", digits(sum1))
	})
	r := resolver()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if _, err := r.Resolve(t.Context(), listingOf(base), track.Image{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(requests) != 2 || requests["/images/"] != 1 || requests["/images/SHA256SUMS"] != 1 {
		t.Errorf("requests: %v", requests)
	}
}

func TestCanceledResolveReturnsTheErrorOfTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	base := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	_, err := resolver().Resolve(ctx, listingOf(base), track.Image{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAddressesWithSecretsAreNotInErrors(t *testing.T) {
	base := serve(t, http.NotFound)
	tracker := listingOf(base)
	tracker.Listing.URL += "?token=secret"
	_, err := resolver().Resolve(t.Context(), tracker, track.Image{})
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("got %v", err)
	}
}

func TestDeclaredAddressMayBeThatOfAMirror(t *testing.T) {
	c := readCases(t)[0]
	base := serveVendor(t, vendorCase{Root: "ubuntu/t1"}).URL
	c = c.with(t, base)
	want, err := ident.ParseDigest(c.Expect.Checksum)
	if err != nil {
		t.Fatal(err)
	}
	m := track.Image{URL: "https://mirror.example.com/ubuntu/" + strings.TrimPrefix(c.Expect.URL, base+"/releases/"), Checksum: want}
	answer, err := resolver().Resolve(t.Context(), c.Track, m)
	if err != nil || answer.Update || answer.URL != m.URL || answer.Pinned != c.Expect.Version {
		t.Errorf("got %+v, %v: the address of the mirror must stay", answer, err)
	}
}
