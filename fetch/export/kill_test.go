package export

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// TestResumeExportAfterKill kills the exporting process with SIGKILL several times. Each kill leaves
// a partial file or no file, and the final image must equal that of an uninterrupted export.
func TestResumeExportAfterKill(t *testing.T) {
	d := openDisk(t, t.TempDir())
	dir := volume{disk: d, folder: "bench-00000001", size: 24 << 20, data: 3}.write(t)
	for _, format := range []model.Format{model.Raw, model.QCOW2} {
		want, err := export(t.Context(), d, ident.ID{Name: "whole", UUID: "00000001"}, find(t, d, Request{Volume: "bench", Format: format}))
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(1, 1))
		kills := 0
		for from := int64(0); ; {
			at := from + r.Int64N(10<<20)
			c := exec.Command(os.Args[0])
			c.Env = append(os.Environ(), "EXPORT_TEST_DISK="+d.Path(), "EXPORT_TEST_FORMAT="+string(format))
			var out strings.Builder
			c.Stdout, c.Stderr = &out, &out
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- c.Wait() }()
			killed := killAt(d, c.Process, at, ended)
			now := d.Stat(imageID)
			if !killed && now.State == model.Ready {
				if kills > 0 {
					break
				}
				if err := d.Remove(imageID, disk.Mark{}); err != nil { // the process ended before the kill: repeat
					t.Fatal(err)
				}
				continue
			}
			if now.State == model.Ready && now.SHA512 != want.SHA512 {
				t.Fatalf("after %d kills: %+v", kills, now)
			}
			if !killed {
				t.Fatalf("after %d kills: %s", kills, out.String())
			}
			kills++
			from = max(from, now.PartBytes)
		}
		if c := d.Stat(imageID); c.SHA512 != want.SHA512 || c.Size != want.Size {
			t.Errorf("%s: after %d kills the image is %+v, want %+v", format, kills, c, want)
		}
		for _, id := range []ident.ID{imageID, {Name: "whole", UUID: "00000001"}} {
			if err := d.Remove(id, disk.Mark{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	left, err := filepath.Glob(filepath.Join(d.Path(), "backing-images", "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("files left: %v, error %v", left, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "volume.meta")); err != nil {
		t.Error(err)
	}
}

// killAt kills p when the partial file has at least size bytes. It reports whether it killed p before
// p exited.
func killAt(d *disk.Disk, p *os.Process, size int64, ended <-chan error) bool {
	for {
		select {
		case <-ended:
			return false
		default:
		}
		if d.Stat(imageID).PartBytes >= max(size, 1) {
			_ = p.Kill() // p may have exited
			<-ended
			return true
		}
		runtime.Gosched()
	}
}
