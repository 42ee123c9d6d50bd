package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// backup returns the action that creates the declared backup of an image, unless a complete
// backup is known. The node with the best ranked ready copy creates it. If two nodes disagree
// about the best copy, both start the backup. The second node then only reads the store, since a
// backup is written once.
func (p imagePlanner) backup(inspections map[schema.DiskRef]Action) (a Action, needed bool) {
	if p.state.image.Backup == nil || len(p.state.ready) == 0 || p.ix.observed.BackedUp[p.state.image.ID] {
		return Action{}, false
	}
	ref := p.state.ready[0]
	c := p.ix.copyAt(ref)
	if _, inspected := inspections[ref.Disk]; inspected || !p.ix.desired.Owns(ref.Disk) || c.Leaving {
		return Action{}, false
	}
	return p.ix.attempt(Backup, ref, Reason{CodeBackupMissing, "no complete backup was found at the target"}, c.RealSize), true
}

// FindBackedUp returns the images whose declared backup is complete according to the record of
// a ready copy on these disks.
func (o Observed) FindBackedUp(d Desired) map[disk.ID]bool {
	complete := map[disk.ID]bool{}
	for _, image := range d.Config.Images {
		if image.Backup == nil {
			continue
		}
		for _, seen := range o.Disks {
			if c, ready := seen.Ready(image.ID); ready && c.BackupID == BackupRecord(*image.Backup, image.ID, c.SHA512) {
				complete[image.ID] = true
			}
		}
	}
	return complete
}

// BackupRecord returns what the record of a copy contains after a complete backup of it. It is
// a hash, since the address of a target may be confidential.
func BackupRecord(b schema.Backup, id disk.ID, digest disk.Digest) string {
	h := sha256.Sum256([]byte(strings.Join([]string{b.Target, id.Name, digest.String()}, "\x00")))
	return hex.EncodeToString(h[:16])
}
