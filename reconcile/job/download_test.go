package job_test

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A server has the index, but it does not have the image yet: further attempts do not transfer the index again.
func TestIndexIsTransferredOnce(t *testing.T) {
	folder := t.TempDir()
	if _, err := disk.Init(folder); err != nil {
		t.Fatal(err)
	}
	image := bytes.Repeat([]byte("parrot!!"), 1<<17)
	index := indexOf(t, image)
	var exists atomic.Bool
	var indexes atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/image.caibx":
			indexes.Add(1)
			_, _ = w.Write(index)
		case exists.Load():
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(image))
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	sum := sha512.Sum512(image)
	digest, err := ident.ParseDigest(hex.EncodeToString(sum[:]))
	if err != nil {
		t.Fatal(err)
	}
	id := ident.ID{Name: "parrot", UUID: "6846a0b2"}
	j := job.Job{
		Order: job.Order{Action: plan.Action{Op: model.Download, Image: id.Name, UUID: id.UUID}, Progress: &fetch.Progress{}},
		Disk:  open(t, folder), Client: &fetch.Client{AllowLoopback: true},
		Survey: func(assemble.Survey) {}, WarnIndex: func(err error) { t.Error(err) },
	}
	j.Image.Checksum = digest
	j.Image.Source.Download = &schema.Download{URL: server.URL + "/image", Index: server.URL + "/image.caibx"}
	for range 3 {
		if err := j.Run(t.Context()); err == nil {
			t.Fatal("the job downloaded an image that the server does not have")
		}
	}
	exists.Store(true)
	if err := j.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := indexes.Load(); got != 1 {
		t.Errorf("the index was transferred %d times, want once", got)
	}
}

// indexOf returns the index of an image.
func indexOf(t *testing.T, image []byte) []byte {
	f, err := caibx.TempFile(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	table, err := caibx.Cut(context.Background(), withoutHoles{bytes.NewReader(image)}, int64(len(image)), caibx.Header{Sizes: caibx.Blocks(4096)}, f, new(atomic.Int64))
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	return bytes.Clone(table.Index())
}

// withoutHoles is a caibx.File.
type withoutHoles struct{ *bytes.Reader }

func (withoutHoles) IsHole(from, to int64) bool { return false }
