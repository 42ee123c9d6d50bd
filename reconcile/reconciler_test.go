package reconcile

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
)

func newDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func randomImage(size int) []byte {
	b := make([]byte, size)
	rand.NewChaCha8([32]byte{7}).Read(b)
	return b
}

func TestConvergeDownloadsCopiesAndStops(t *testing.T) {
	image := randomImage(3<<20 + 512)
	requests := 0
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		http.ServeContent(w, r, "", startOfTest, bytes.NewReader(image))
	}))
	defer upstream.Close()
	disk1, disk2 := newDisk(t), newDisk(t)
	d := plantest.Load(t, strings.ReplaceAll(`
settings: {allowLoopbackSources: true}
images:
  parrot:
    source: {download: {url: "URL/parrot.raw"}}
    minNumberOfCopies: 2
`, "URL", upstream.URL), disk1, disk2)
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	o, plan, err := r.Converge(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	if !plan.Empty() || requests != 1 {
		t.Errorf("after %d requests the plan is %+v; observed %+v", requests, plan, o)
	}
	for _, dir := range []string{disk1, disk2} {
		got, err := os.ReadFile(filepath.Join(dir, "backing-images", d.Config.Images["parrot"].ID.String(), "backing"))
		if err != nil || !bytes.Equal(got, image) {
			t.Errorf("the image on %s is wrong (error %v)", dir, err)
		}
	}
}
