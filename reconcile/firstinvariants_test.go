package reconcile

import (
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// first checks what makes the first copy of an image, from its source or from another
// image.
func (j *invariants) first(a plan.Action) {
	key := a.CopyRef()
	image := j.d.Config.Images[a.Image]
	if image.ID != key.ID || a.Op == plan.Sync && (!image.Checksum.IsZero() || j.source(a).ID == image.ID) {
		return
	}
	if image.Checksum.IsZero() {
		j.heard(a)
	}
	j.never(a.Op == plan.Export && j.o.CannotPrepare[key.ID] != "" && !j.o.Running[key], "export of %s: %s", key, j.o.CannotPrepare[key.ID])
	begun := j.o.Disks[key.Disk].Copies[key.ID].PartSourceID == disk.PartFromUpload
	j.never(a.Op == plan.Upload && (j.d.Uploads == nil || !j.d.Uploads[key] && !begun && !j.o.Running[key]), "upload of %s, which nobody begins", key)
	if image.Source.Clone != nil {
		j.cloned(a)
	}
	if a.Op == plan.Sync || a.Op == plan.Clone && image.Source.Clone.Encryption == schema.Encrypt {
		last := j.bore(image.ID)
		j.never(len(last) > 0 && !last[a.SourceDigest], "%s of %s, which was something else just now", a.Op, key)
	}
}

// heard checks that nobody is waited for that may have what an image without a checksum
// is.
func (j *invariants) heard(a plan.Action) {
	for node := range j.d.Config.Nodes {
		p, asking := j.o.Peers[node]
		if node != j.d.Node && asking && !j.speaks(node) {
			j.never(!p.Queried || p.UnreachableFor < j.d.Config.Settings.RecoveryWaitInterval, "%s of %s, and nothing was heard of %s", a.Op, a.CopyRef(), node)
		}
	}
}

// cloned checks what an image is cloned from.
func (j *invariants) cloned(a plan.Action) {
	source, declared := j.d.Config.Images[j.d.Config.Images[a.Image].Source.Clone.BackingImage]
	if !declared {
		return
	}
	suspect := plan.Suspects(j.o.Failures)
	j.never(a.From != (plan.CopyRef{}) && suspect[j.source(a)], "%s of %s from what is suspected", a.Op, a.CopyRef())
	if !source.Checksum.IsZero() || !j.d.Config.Images[a.Image].Checksum.IsZero() {
		return
	}
	sums := map[disk.Digest]bool{}
	for _, key := range j.readyOf(source) {
		if c := j.o.Disks[key.Disk].Copies[key.ID]; !c.Leaving && !suspect[key] {
			sums[c.SHA512] = true
		}
	}
	j.never(len(sums) > 1, "%s of %s, and the copies of its source differ", a.Op, a.CopyRef())
}

// bore are the digests that failed copies had within the recovery interval.
func (j *invariants) bore(id disk.ID) map[disk.Digest]bool {
	sums := map[disk.Digest]bool{}
	for _, seen := range j.o.Disks {
		c, there := seen.Copies[id]
		age := j.o.Now.Sub(c.DamagedAt)
		if there && seen.Problem == "" && c.State == disk.Failed && !c.SHA512.IsZero() && !c.DamagedAt.IsZero() && age >= 0 && age < j.d.Config.Settings.RecoveryWaitInterval {
			sums[c.SHA512] = true
		}
	}
	return sums
}
