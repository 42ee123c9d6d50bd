package reconcile

import (
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/export"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// cannotPrepare says of which images this node cannot make the first copy, as it has nothing
// to export, of those that this matters for.
func (r *Reconciler) cannotPrepare(d plan.Desired, o plan.Observed) map[disk.ID]string {
	unable := map[disk.ID]string{}
	disks := r.disks.usable()
	for _, image := range d.Config.Images {
		e := image.Source.ExportFromVolume
		if e == nil || o.AnyReady(image.ID) {
			continue
		}
		if _, err := export.Find(&r.client, disks, job.ExportRequest(*e)); err != nil {
			unable[image.ID] = err.Error()
		}
	}
	return unable
}
