package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

const mid = 2<<20 + 100

// downloadHalf downloads a little more than 2 MiB and closes the partial file, like a process that is
// stopped.
func (r *fixture) downloadHalf(req Request) {
	r.t.Helper()
	p := r.openPart(disk.PartOptions{})
	ctx, cancel := context.WithCancel(context.Background())
	var progress Progress
	go func() {
		for progress.Done.Load() < mid && ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel()
	}()
	req.URL = withSecretQuery(req.URL)
	err := r.client.Download(ctx, req, p, &progress)
	cancel()
	if err != context.Canceled {
		r.t.Fatalf("got %v, want exactly %v", err, context.Canceled)
	}
	if err := p.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.server.ClearRequests()
}

var (
	// stallOnce makes downloadHalf stop at mid.
	stallOnce = fetchtest.Fault{Kind: fetchtest.Stall, At: mid, Times: 1}
	// cutOnce and gone are faults of a server that fails in the middle of a file.
	cutOnce = fetchtest.Fault{Kind: fetchtest.Cut, At: mid, Times: 1}
	gone    = fetchtest.Fault{Kind: fetchtest.Unavailable, Skip: 1}
)

func TestResumeAfterRestart(t *testing.T) {
	r := newFixture(t)
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), stallOnce)}
	r.downloadHalf(req)
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
	got := r.server.Requests()
	if len(got) != 1 || got[0].Range != "bytes=2097152-" || got[0].IfRange == "" {
		t.Errorf("got requests %+v, want one request for the missing bytes with If-Range", got)
	}
}

func TestCompletePartSendsNoRequest(t *testing.T) {
	r := newFixture(t)
	whole := image[:2<<20]
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(whole))}
	p := r.openPart(disk.PartOptions{})
	if err := r.into(p, req); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	r.server.ClearRequests()
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(whole)
	if got := r.server.Requests(); len(got) != 0 {
		t.Errorf("got requests %+v for a complete partial file, want none", got)
	}
}

func TestChangedFileIsDownloadedFromStart(t *testing.T) {
	other := slices.Clone(image)
	other[0] ^= 0x80
	for _, declared := range []bool{false, true} {
		r := newFixture(t)
		req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), stallOnce, fetchtest.Fault{Kind: fetchtest.Changed})}
		if declared {
			req.Digest = digest(other)
		}
		r.downloadHalf(req)
		if err := r.download(req); err != nil {
			t.Fatal(err)
		}
		r.wantImage(other)
		if got := r.rangeHeaders(); !slices.Equal(got, []string{"bytes=2097152-"}) {
			t.Errorf("got requests with ranges %q, want one whose response is the whole file", got)
		}
	}
}

func TestShorterFileIsDownloadedFromStart(t *testing.T) {
	r := newFixture(t)
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), stallOnce)}
	r.downloadHalf(req)
	shorter := image[:1<<20]
	req.URL = r.server.Serve("/image.raw", fetchtest.Bytes(shorter), fetchtest.Fault{Kind: fetchtest.NoValidator})
	req.Digest = digest(shorter)
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(shorter)
}

func TestRestartDiscardsPart(t *testing.T) {
	r := newFixture(t)
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), stallOnce)}
	r.downloadHalf(req)
	req.Restart = true
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
	if got := r.rangeHeaders(); !slices.Equal(got, []string{""}) {
		t.Errorf("got ranges %q, want one request for the whole file", got)
	}
}

// TestRetriesAfter503 downloads from a server that responds to one request of four.
func TestRetriesAfter503(t *testing.T) {
	r := newFixture(t)
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Flaky})}
	for range 3 {
		wantError(t, r.download(req), Network, "503")
	}
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
}

// TestFaultsFromQuery checks that a query can inject faults, which scenarios use.
func TestFaultsFromQuery(t *testing.T) {
	r := newFixture(t)
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image)) + "?fault=cut&at=1048576&times=2&fault=novalidator", Digest: digest(image)}
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
	if got, want := r.rangeHeaders(), []string{"", "bytes=1048576-", "bytes=2097152-"}; !slices.Equal(got, want) {
		t.Errorf("got ranges %q, want %q", got, want)
	}
}

// TestBodyOfWrongLength checks that a body of a wrong length is detected. net/http detects it for a
// response with a length; for partial responses and local files, this package must detect it.
func TestBodyOfWrongLength(t *testing.T) {
	short := &boundedBody{Reader: bytes.NewReader(image), left: int64(len(image)) + 100, bounded: true,
		broken: func(left int64, err error) error { return bodyError(t.Context(), left, err) }}
	_, err := io.ReadAll(short)
	wantError(t, err, Dropped, "100 bytes before the end")
	body := &boundedBody{Reader: bytes.NewReader(image), left: 100, bounded: true}
	_, err = io.ReadAll(body)
	wantError(t, err, BadSource, "longer than the server announced")
}

// TestRestartAfterWrongJoin checks that an attempt with Restart succeeds after a wrong checksum. The
// first half is from a server, and the second half from a mirror with different bytes of the same
// length.
func TestRestartAfterWrongJoin(t *testing.T) {
	r := newFixture(t)
	other := fetchtest.Random(2, len(image))
	req := Request{
		URL:     r.server.Serve("/image.raw", fetchtest.Bytes(image), cutOnce, gone),
		Mirrors: []string{r.server.Serve("/mirror.raw", fetchtest.Bytes(other))},
		Digest:  digest(image),
	}
	var progress Progress
	p := r.openPart(disk.PartOptions{})
	if err := r.client.Download(context.Background(), req, p, &progress); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(req.Digest); !errors.As(err, new(*disk.ChecksumError)) || !progress.Joined.Load() {
		t.Fatalf("got %v, joined %v, want a checksum error for bytes of two responses", err, progress.Joined.Load())
	}
	r.server.Serve("/image.raw", fetchtest.Bytes(image), cutOnce)
	req.Restart = true
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
}

func TestCancelDownload(t *testing.T) {
	r := newFixture(t)
	url := r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Stall, At: 2 << 20})
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("stopped")
	p := r.openPart(disk.PartOptions{})
	var progress Progress
	go func() {
		for progress.Done.Load() < 2<<20 && ctx.Err() == nil {
			runtime.Gosched()
		}
		cancel(reason)
	}()
	err := r.client.Download(ctx, Request{URL: url}, p, &progress)
	if !errors.Is(err, reason) || errors.As(err, new(*Error)) {
		t.Errorf("got error %v, want exactly the cause of the cancellation", err)
	}
	if p.Offset() != 2<<20 {
		t.Errorf("the partial file has %d bytes, want the received bytes", p.Offset())
	}
}

func TestDownloadWithoutSpace(t *testing.T) {
	r := newFixture(t)
	p := r.openPart(disk.PartOptions{Reserve: 1 << 60})
	err := r.into(p, Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image))})
	wantError(t, err, NoSpace)
	if got := r.server.Requests(); len(got) != 1 {
		t.Errorf("got %d requests, want one, and no mirror or retry", len(got))
	}
}

func TestDownloadLargerThanMaxSize(t *testing.T) {
	r := newFixture(t)
	url := r.server.Serve("/image.raw", fetchtest.Repeated(image, 1<<30))
	wantError(t, r.download(Request{URL: url, MaxSize: 1 << 20}), BadSource, "larger than allowed")
	if sent := r.server.Requests()[0].Sent; sent > 64<<20 {
		t.Errorf("%d bytes were read of a file that is too large", sent)
	}
}

func TestProgress(t *testing.T) {
	r := newFixture(t)
	var progress Progress
	p := r.openPart(disk.PartOptions{})
	url := r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Cut, At: 1 << 20, Times: 1})
	if err := r.client.Download(context.Background(), Request{URL: url}, p, &progress); err != nil {
		t.Fatal(err)
	}
	done, total := progress.Done.Load(), progress.Total.Load()
	if want := int64(len(image)); done != want || total != want {
		t.Errorf("got %d of %d bytes, want all %d", done, total, want)
	}
	if got := progress.Resumed.Load(); got != 1<<20 {
		t.Errorf("the download resumed at %d, want %d: the response was cut there", got, 1<<20)
	}
}

func TestBandwidthLimit(t *testing.T) {
	r := newFixture(t)
	url := r.server.Serve("/image.raw", fetchtest.Bytes(bytes.Repeat([]byte{1}, 512<<10)))
	began := time.Now()
	if err := r.download(Request{URL: url, BandwidthLimit: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began).Seconds(); took < 0.3 || took > 30 {
		t.Errorf("512 KiB took %.2f s at 1 MiB/s", took)
	}
}

// TestVersionsAreNeverJoined checks that a changed file is detected without a checksum. The servers
// support Range but not If-Range, and after half of the file it changes to a file of the same length.
func TestVersionsAreNeverJoined(t *testing.T) {
	other := slices.Clone(image)
	for i := range other {
		other[i] ^= 0x55
	}
	long := time.Now().Add(-24 * time.Hour).UTC()
	for name, validators := range map[string]func(h http.Header, version, status int){
		"date": func(h http.Header, version, _ int) {
			h.Set("Last-Modified", long.Add(time.Duration(version)*time.Hour).Format(http.TimeFormat))
		},
		"etag": func(h http.Header, version, _ int) { h.Set("ETag", fmt.Sprintf(`"v%d"`, version)) },
		"etag only in the response for the whole file": func(h http.Header, version, status int) {
			if status == http.StatusOK {
				h.Set("ETag", fmt.Sprintf(`"v%d"`, version))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFixture(t)
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				body, status, at := other, http.StatusOK, 0
				if requests++; requests == 1 {
					body = image
				}
				if _, err := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-", &at); err == nil {
					status = http.StatusPartialContent
					w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", at, len(body)-1, len(body)))
				}
				validators(w.Header(), requests, status)
				w.Header().Set("Content-Length", fmt.Sprint(len(body)-at))
				w.WriteHeader(status)
				if requests == 1 {
					_, _ = w.Write(body[:len(body)/2])
					panic(http.ErrAbortHandler)
				}
				_, _ = w.Write(body[at:]) // fails if the client has closed the connection
			}))
			defer server.Close()
			if err := r.download(Request{URL: server.URL + "/image.raw"}); err != nil {
				t.Fatal(err)
			}
			r.wantImage(other)
		})
	}
}
