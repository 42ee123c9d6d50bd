package reconcile

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// TestIntervalBeginsAgainWhenMarksAreLost declares an image again and takes it away
// again, while its record cannot be written. What stands there is of the first time.
func TestIntervalBeginsAgainWhenMarksAreLost(t *testing.T) {
	dir, image := newDisk(t), filepath.Join(t.TempDir(), "parrot.raw")
	if err := os.WriteFile(image, randomImage(1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	declared := desire(t, `images: {parrot: {source: {download: {url: "file://`+image+`"}}}}`, dir)
	without := desire(t, `images: {}`, dir)
	r := New(fetch.Client{AnyFile: true}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	converge := func(d Desired) Observed {
		t.Helper()
		o, _, err := r.Converge(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	converge(declared)
	id := declared.Config.Images["parrot"].ID
	for ref := range r.Look(declared).Disks {
		long := time.Now().Add(-2 * time.Hour).UTC()
		if err := r.disks.open[ref].Update(id, func(record *disk.Record) { record.UnwantedSince = long }); err != nil {
			t.Fatal(err)
		}
	}
	obstacle := filepath.Join(dir, "backing-images", id.String(), "backing.record.tmp")
	if err := os.Mkdir(obstacle, 0o755); err != nil {
		t.Fatal(err)
	}
	converge(declared)
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	for ref, seen := range converge(without).Disks {
		c, there := seen.Copies[id]
		if !there || time.Since(c.UnwantedSince) > time.Hour {
			t.Errorf("%s: the copy is there: %v, unwanted since %v", ref, there, c.UnwantedSince)
		}
	}
}
