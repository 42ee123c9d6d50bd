package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// A long poll of the status responds to a change of the state, and neither to rounds nor to the time.
func TestStatusIsALongPoll(t *testing.T) {
	dir, conf := t.TempDir(), t.TempDir()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(conf, "config.yaml"), `images: {parrot: {source: {upload: {}}}}`)
	loop := startLoop(t, conf, dir)
	ctx, stop := context.WithCancel(t.Context())
	handler := newServer(loop, localAuthorizer(t), Options{MaxRoundAge: time.Minute}).handler()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r.WithContext(ctx)) // a daemon that stops ends ctx
	}))
	t.Cleanup(s.Close)
	client, err := NewClient(s.URL, "", auth.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	var document *status.Status
	var etag string
	waitFor(t, "the image is not in the status", func() bool {
		document, etag, err = client.StatusAfter(t.Context(), "", timeout)
		return err == nil && len(document.Images) == 1 && document.Images[0].Copies[0].Message != ""
	})

	rounds := loop.View().Rounds
	same, again, err := client.StatusAfter(t.Context(), etag, time.Second)
	if same != nil || again != etag || err != nil || loop.View().Rounds == rounds {
		t.Errorf("after %d rounds without a change: status %+v, ETag %s, error %v", loop.View().Rounds-rounds, same, again, err)
	}

	type response struct {
		status *status.Status
		etag   string
		err    error
	}
	responses := make(chan response)
	poll := func() {
		var r response
		r.status, r.etag, r.err = client.StatusAfter(t.Context(), etag, timeout)
		responses <- r
	}
	go poll()
	writeFile(t, filepath.Join(conf, "more.yaml"), `images: {macaw: {source: {upload: {}}}}`)
	if r := <-responses; r.err != nil || r.status == nil || r.etag == etag || r.etag == "" {
		t.Errorf("after a change: %+v", r)
	} else {
		etag = r.etag
	}
	waitFor(t, "the ETag changes again and again", func() bool {
		document, again, err := client.StatusAfter(t.Context(), etag, 500*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		etag = again
		return document == nil
	})

	go poll()
	stop()
	if r := <-responses; r.err == nil || r.status != nil {
		t.Errorf("at the end of the daemon: %+v", r)
	}
}

func TestStatusRejectsAWaitThatIsNoDuration(t *testing.T) {
	s := startServer(t, "images: {}")
	s.until("/v1/status", func(status int, _ string) bool { return status == 200 })
	if status, body := s.do("GET", "/v1/status?wait=long"); status != http.StatusBadRequest {
		t.Errorf("%d %s", status, body)
	}
}

// Each response has all parts of the status, also the first one after a round.
func TestStatusHasTheStateOfReports(t *testing.T) {
	s := startServer(t, `settings: {report: {url: "https://status.example/{node}.json"}}`)
	s.until("/v1/status", func(_ int, body string) bool { return strings.Contains(body, `"server":"`) })
	for range 5 {
		next := s.loop.NextRound()
		<-next // each test loop has a round every 100 ms
		if _, body := s.do("GET", "/v1/status"); !strings.Contains(body, `"server":"`) {
			t.Fatalf("the status after a round lacks the report: %s", body)
		}
	}
}
