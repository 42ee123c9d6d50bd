package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// backup is what keeps the declared backup of an image whole. It is for the node that
// has the ready copy of the best rank; that others believe so too costs nothing but a
// look at the store.
func (v imagePlanner) backup(settling map[schema.DiskRef]Action) (a Action, due bool) {
	if v.image.Backup == nil || len(v.ready) == 0 || v.ix.observed.BackedUp[v.image.ID] {
		return Action{}, false
	}
	key := v.ready[0]
	c := v.ix.copyAt(key)
	if _, first := settling[key.Disk]; first || !v.ix.desired.Owns(key.Disk) || c.Leaving {
		return Action{}, false
	}
	return v.attempt(Backup, key.Disk, "no whole backup of it has been seen at the target", c.RealSize), true
}

// FindBackedUp are the images of which a copy on these disks says that its declared backup
// was seen whole.
func (o Observed) FindBackedUp(d Desired) map[disk.ID]bool {
	whole := map[disk.ID]bool{}
	for _, image := range d.Config.Images {
		if image.Backup == nil {
			continue
		}
		for _, seen := range o.Disks {
			if c, ready := seen.Ready(image.ID); ready && c.BackupID == BackupRecord(*image.Backup, image.ID, c.SHA512) {
				whole[image.ID] = true
			}
		}
	}
	return whole
}

// BackupRecord is what the record of a copy says of a whole backup of it. Targets may hold
// names that are nobody's business.
func BackupRecord(b schema.Backup, id disk.ID, sum disk.Digest) string {
	h := sha256.Sum256([]byte(strings.Join([]string{b.Target, id.Name, sum.String()}, "\x00")))
	return hex.EncodeToString(h[:16])
}
