package job_test

import (
	"bytes"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// The first attempts to open the record and the cfg of a local source fail, as the process has
// too many open files. Without the digest from these files, the job must fail: damaged bytes of
// the source would become another ready copy.
func TestSyncNeedsTheDigestOfItsSource(t *testing.T) {
	v := faultfs.Mount(t).NewVolume()
	target := t.TempDir()
	for _, path := range []string{v.Path(), target} {
		if _, err := disk.Init(path); err != nil {
			t.Fatal(err)
		}
	}
	id := ident.ID{Name: "parrot", UUID: "6846a0b2"}
	first := open(t, v.Path())
	part, err := first.OpenPart(t.Context(), id, disk.PartOptions{})
	if err == nil {
		err = part.Begin(disk.PartSource{ID: "a file", Size: 512})
	}
	if err == nil {
		_, err = part.ReadFrom(bytes.NewReader(bytes.Repeat([]byte("parrot!!"), 64)))
	}
	if err == nil {
		_, err = part.Commit(ident.Digest{})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, encryption := range []schema.Encryption{"", schema.EncryptionIgnore} {
		to, source := open(t, target), open(t, v.Path())
		j := job.Job{
			Order: job.Order{Action: plan.Action{Op: model.Sync, Image: id.Name, UUID: id.UUID, LocalSource: ident.CopyRef{ID: id}}, Progress: &fetch.Progress{}},
			Disk:  to, Disks: map[string]*disk.Disk{"": source}, Client: &fetch.Client{},
		}
		if encryption != "" {
			j.Action.Op = model.Clone
			j.Image.Source.Clone = &schema.Clone{Encryption: encryption}
		}
		failed := map[string]bool{}
		v.Plan(func(op faultfs.Op) error {
			name := filepath.Base(op.Path)
			if op.Kind != "open" || failed[name] || name != "backing.record" && name != "backing.cfg" {
				return nil
			}
			failed[name] = true
			return syscall.EMFILE
		})
		err := j.Run(t.Context())
		v.Plan(nil)
		if c := to.Stat(id); err == nil || c.State == model.Ready || len(failed) != 2 {
			t.Errorf("%s: error %v, the copy is %s, failed to open: %v", j.Action.Op, err, c.State, failed)
		}
	}
}

func open(t *testing.T, path string) *disk.Disk {
	t.Helper()
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}
