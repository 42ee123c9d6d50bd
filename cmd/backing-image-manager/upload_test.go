package main

import (
	"crypto/sha512"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// The daemon ends an upload if the image becomes ready in another way, for example by a sync from
// another node. The upload must then succeed if the ready bytes are those of the file, and fail
// otherwise.
func TestUploadSucceedsIfTheImageBecomesReadyWithTheSameBytes(t *testing.T) {
	for _, tt := range []struct {
		has  string
		size int // a file larger than one piece is rejected before its end
		err  string
	}{
		{"the same", 1024, ""}, {"others", 1024, "does not know the upload any more; parrot is ready"}, {"none", 1024, "does not know the upload"},
		{"the same", 5 << 20, ""}, {"others", 5 << 20, "refuses: there is no such upload (the image has"}, {"none", 5 << 20, "refuses: there is no such upload"},
	} {
		file := filepath.Join(t.TempDir(), "parrot.raw")
		if err := os.WriteFile(file, fetchtest.Random(1, tt.size), 0o600); err != nil {
			t.Fatal(err)
		}
		has := map[string][]byte{"the same": fetchtest.Random(1, tt.size), "others": []byte("others")}[tt.has]
		copies := ""
		if has != nil {
			copies = fmt.Sprintf(`{"node":"n","disk":"d","state":"ready","sha512":"%x"}`, sha512.Sum512(has))
		}
		daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == "/v1/status":
				fmt.Fprintf(w, `{"images":[{"name":"parrot","declared":true,"copies":[%s]}]}`, copies)
			case r.Method == http.MethodGet && r.URL.Path == upload.Path:
				fmt.Fprint(w, "[]")
			case r.Method == http.MethodPost:
				w.Header().Set("Location", upload.Path+"/one")
				w.WriteHeader(http.StatusCreated)
			default:
				httperror.New(http.StatusNotFound, "there is no such upload").Write(w)
			}
		}))
		u := &uploadCmd{imageFlags: imageFlags{daemonFlags: daemonFlags{url: daemon.URL}}, name: "parrot", file: file, size: -1, in: strings.NewReader(""), out: io.Discard, err: io.Discard}
		err := u.run(t.Context())
		daemon.Close()
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%d bytes, with %s ready: %v", tt.size, tt.has, err)
		}
	}
}
