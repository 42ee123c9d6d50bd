package reconcile

import (
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// backup is what keeps the declared backup of an image whole. It is for the node that
// has the ready copy of the best rank; that others believe so too costs nothing but a
// look at the store.
func (v imageView) backup(settling map[schema.DiskRef]Action) (a Action, due bool) {
	if v.image.Backup == nil || len(v.ready) == 0 || v.o.BackedUp[v.image.ID] {
		return Action{}, false
	}
	key := v.ready[0]
	c := v.copy(key)
	if _, first := settling[key.Disk]; first || !v.mine(key.Disk) || c.Leaving {
		return Action{}, false
	}
	return v.try(Backup, key.Disk, "no whole backup of it has been seen at the target", c.RealSize), true
}

// backedUp are the images whose declared backup this process has seen whole.
func (r *Reconciler) backedUp(d Desired) map[disk.ID]bool {
	whole := map[disk.ID]bool{}
	for _, image := range d.Config.Images {
		if b, seen := r.backups[image.ID]; seen && image.Backup != nil && b == *image.Backup {
			whole[image.ID] = true
		}
	}
	return whole
}
