package reconcile

import (
	"context"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/export"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// export makes the image of a volume that this node has, as it is then.
func (j job) export(ctx context.Context, id disk.ID) error {
	source, err := export.Find(j.client, j.disks, exportRequest(*j.image.Source.ExportFromVolume))
	if err != nil {
		return err
	}
	want := j.image.Checksum
	if want.IsZero() {
		want = j.action.recall.digest
	}
	return j.fill(ctx, id, want, source.CanResume, func(part *disk.Part) error {
		return source.Fill(ctx, part, j.progress)
	})
}

func exportRequest(e schema.ExportFromVolume) export.Request {
	return export.Request{
		Volume: e.VolumeName, Snapshot: e.SnapshotName, Path: e.Path,
		Format: e.ExportType, Compress: e.Compress,
	}
}

// format is what the bytes of the image have to be. A raw disk that a guest wrote the
// header of another format to must not become an image of that format.
func (j job) format() disk.Format {
	if e := j.image.Source.ExportFromVolume; e != nil {
		return e.ExportType
	}
	return disk.Format(j.image.Format)
}

// unable says of which images this node cannot make the first copy, as it has nothing
// to export, of those that this matters for.
func (r *Reconciler) unable(d Desired, o Observed) map[disk.ID]string {
	unable := map[disk.ID]string{}
	disks := r.disks.usable()
	for _, image := range d.Config.Images {
		e := image.Source.ExportFromVolume
		if e == nil || o.anyReady(image.ID) {
			continue
		}
		if _, err := export.Find(&r.client, disks, exportRequest(*e)); err != nil {
			unable[image.ID] = err.Error()
		}
	}
	return unable
}

// anyReady reports whether any disk, of whatever node, has a ready copy.
func (o Observed) anyReady(id disk.ID) bool {
	for _, seen := range o.Disks {
		if _, ready := seen.ready(id); ready {
			return true
		}
	}
	return false
}

// usable are the open disks by name.
func (s *disks) usable() map[string]*disk.Disk {
	usable := map[string]*disk.Disk{}
	for ref, o := range s.open {
		if o.Disk != nil && o.problem == "" {
			usable[ref.Disk] = o.Disk
		}
	}
	return usable
}
