package reconcile

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A sector of a ready copy cannot be read until it is written anew. The verification that
// meets it has the bytes of another copy, if there is one.
func TestVerifyMendsWhatCannotBeRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "parrot.raw")
	if err := os.WriteFile(file, randomImage(4*disk.ChunkSize), 0o644); err != nil {
		t.Fatal(err)
	}
	config := `images: {parrot: {minNumberOfCopies: all, source: {download: {url: "file://` + file + `"}}}}`
	for _, alone := range []bool{true, false} {
		v := faultfs.Mount(t).NewVolume()
		if _, err := disk.Init(v.Path()); err != nil {
			t.Fatal(err)
		}
		paths := []string{v.Path(), newDisk(t)}
		if alone {
			paths = paths[:1]
		}
		d := plantest.Load(t, config, paths...)
		r := New(fetch.Client{AllowAnyFile: true}, slog.New(slog.DiscardHandler), false)
		defer r.Close()
		if _, _, err := r.Converge(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		key := plan.CopyRef{ID: d.Config.Images["parrot"].ID}
		for name, on := range d.Config.Nodes[d.Node].Disks {
			if on.Path == v.Path() {
				key.Disk = schema.DiskRef{Node: d.Node, Disk: name}
			}
		}
		reads, written := 0, false
		v.Plan(func(op faultfs.Op) error {
			switch isImage := strings.HasSuffix(op.Path, "/backing"); {
			case isImage && op.Kind == "open":
				reads = 0
			case isImage && op.Kind == "write":
				written = true
			case isImage && op.Kind == "read":
				if reads++; reads == 2 && !written {
					return syscall.EIO
				}
			}
			return nil
		})
		d.Verify = map[plan.CopyRef]bool{key: true}
		r.Round(t.Context(), d)
		e := <-r.Ended()
		r.Finish(e)
		v.Plan(nil)
		d.Verify = nil
		if c := r.Observe(d).Disks[key.Disk].Copies[key.ID]; (e.err != nil) != alone || written == alone || c.State != disk.Ready {
			t.Errorf("alone %v: error %v, written %v, the copy is %s", alone, e.err, written, c.State)
		}
		if alone && !disk.IsMediaError(e.err) {
			t.Errorf("the error does not say that it cannot be read: %v", e.err)
		}
	}
}
