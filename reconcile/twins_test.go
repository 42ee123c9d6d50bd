package reconcile

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
)

// TestOneDiskAtTwoPathsIsRefused has a disk that can be reached by two ways. It would
// be counted twice; and it is nobody else who holds it.
func TestOneDiskAtTwoPathsIsRefused(t *testing.T) {
	dir, link := newDisk(t), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	d := plantest.Load(t, `images: {}`, dir, link)
	for range 2 { // it stays so
		for ref, seen := range r.Observe(d).Disks {
			if !strings.Contains(seen.Problem, "same diskUUID") {
				t.Errorf("%s has the problem %q", ref, seen.Problem)
			}
		}
		if err := r.LockedElsewhere(); err != nil {
			t.Error(err)
		}
	}
}
