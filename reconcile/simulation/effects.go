package simulation

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// Own makes the folder owned. A file that was in it before counts as not verified.
func (c *Copy) Own() {
	if !c.Owned {
		c.Owned, c.Changed = true, c.File != ""
	}
}

// Fill is the end of a job that creates a copy: it replaces the partial file by a file with the
// content. The file must have the digest want, unless want is zero, and must leave reserve bytes
// free.
func (d *Disk) Fill(id ident.ID, content string, want ident.Digest, reserve int64, now time.Time) error {
	c := d.Folder(id)
	c.Own()
	if c.File != "" && (c.Failure == "" || c.Changed) {
		return fmt.Errorf("%s is ready already", id)
	}
	file, resumed := d.Library.Properties(content), c.Partial
	available := d.Free() - reserve
	c.Partial, c.PartialSource = 0, ""
	if available < file.RealSize-resumed {
		return &disk.NoSpaceError{Need: file.RealSize, Free: max(0, available)}
	}
	if got := file.digest(want.Algorithm()); !want.IsZero() && want != got {
		return &disk.ChecksumError{Want: want, Got: got}
	}
	if user := d.UsedBy(id); c.File != "" && user != "" {
		return &disk.InUseError{ID: id, Reason: user}
	}
	c.File, c.Recorded, c.Failure, c.Changed, c.NoCfg, c.VerifiedAt, c.ReadBackAt = content, content, "", false, false, now, time.Time{}
	return nil
}

func (p Properties) digest(a ident.Algorithm) ident.Digest {
	if a == ident.SHA256 {
		return p.SHA256
	}
	return p.SHA512
}

// Verify is the end of a job that reads the whole file: an adoption or a verification. A file with
// another content than the recorded one is marked as failed, which is no error. A file without
// recorded digests gets them.
func (d *Disk) Verify(id ident.ID, now time.Time) error {
	c := d.Copies[id]
	if c == nil || c.File == "" {
		return errNoFile
	}
	c.Own()
	if c.Recorded == "" {
		c.Recorded = c.File
	}
	c.Changed, c.Failure, c.NoCfg = false, "", false
	if c.Recorded != c.File {
		c.MarkDamaged(now)
		return nil
	}
	c.VerifiedAt, c.ReadBackAt = now, now
	return nil
}

// MarkDamaged records that the file is damaged.
func (c *Copy) MarkDamaged(now time.Time) { c.Failure, c.DamagedAt = "damaged", now }

// Repair is the end of a job that rewrites the damaged chunks of a file from another copy, which has
// the content.
func (d *Disk) Repair(id ident.ID, content string, now time.Time) error {
	c := d.Copies[id]
	switch {
	case c == nil || c.File == "" || c.Failure == "":
		return errors.New("there is nothing to repair")
	case c.Recorded != content:
		return errors.New("the source has other bytes than the recorded ones")
	}
	c.File, c.Failure, c.VerifiedAt, c.ReadBackAt = content, "", now, now
	return nil
}

// Prove returns how a copy answers the request for one chunk. The chunk proves that the copy has the
// bytes that the manifest describes. The node compares the chunk before it sends it, and sends no
// damaged one.
func (d *Disk) Prove(id ident.ID, manifest ident.Digest) plan.Proof {
	c := d.Copies[id]
	switch {
	case !d.Attached || !c.Ready():
		return plan.Proof{Problem: "it is not ready"}
	case c.File != c.Recorded:
		return plan.Proof{Problem: "it is damaged"}
	case !d.Library.Properties(c.File).HasManifest(manifest):
		return plan.Proof{Result: plan.ProofWrong, Problem: peer.ErrWrongChunk.Error()}
	}
	return plan.Proof{Result: plan.ProofPassed}
}

// ProofManifest returns the digest of the chunk manifest with which the chunk of a proof is compared.
// local is the Disk of t.Local; nil: t.Local is zero.
func ProofManifest(t system.ProofTask, local *Disk) ident.Digest {
	if local == nil {
		return t.Source.ManifestDigest
	}
	if c := local.Copies[t.Local.ID]; c != nil && c.Recorded != "" {
		return local.manifestOf(local.Library.Properties(c.Recorded))
	}
	return ident.Digest{}
}

// Removal returns the steps by which disk.RemoveUnused deletes a copy. mark is the name of its mark; "": it has none.
func (d *Disk) Removal(id ident.ID, mark string) disk.Removal {
	return removal{d, id, d.Copies[id], mark}
}

// removal implements disk.Removal.
type removal struct {
	disk *Disk
	id   ident.ID
	copy *Copy
	mark string
}

// CheckUnused implements disk.Removal.
func (r removal) CheckUnused(aside bool) error {
	switch {
	case r.copy == nil || r.disk.Copies[r.id] != r.copy || !r.disk.Attached || r.copy.Aside != aside:
		return errNoFile
	case r.disk.ReadOnly:
		return errIO
	}
	if user := r.disk.UsedBy(r.id); user != "" {
		return &disk.InUseError{ID: r.id, Reason: user}
	}
	return nil
}

// SetAside implements disk.Removal.
func (r removal) SetAside() error {
	r.copy.Aside = true
	return nil
}

// CheckMark implements disk.Removal.
func (r removal) CheckMark() error {
	if r.mark != "" && r.copy.Marks[r.mark] == "" {
		return disk.ErrMarkGone
	}
	return nil
}

// PutBack implements disk.Removal.
func (r removal) PutBack() error {
	r.copy.Aside = false
	return nil
}

// Delete implements disk.Removal.
func (r removal) Delete() error {
	if r.disk.Copies[r.id] != r.copy || !r.disk.Attached || !r.copy.Aside {
		return errNoFile
	}
	delete(r.disk.Copies, r.id)
	return nil
}

// Sync implements disk.Removal.
func (removal) Sync() error { return nil }
