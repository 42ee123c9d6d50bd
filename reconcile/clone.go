package reconcile

import (
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// clones are the ready copies of the image that another one is cloned from: those on
// disks of this node, and whether there are any elsewhere.
func (v imageView) clones() (here []Key, elsewhere bool) {
	source, declared := v.Config.Images[v.image.Source.Clone.BackingImage]
	if !declared {
		return nil, false
	}
	good := func(key Key) bool {
		c := v.copy(key)
		return key.ID == source.ID && c.State == disk.Ready && !c.Leaving && !v.suspect[key] && notDeclared(source, c) == ""
	}
	for _, key := range v.named[source.ID.Name] {
		if good(key) {
			here = append(here, key)
		}
	}
	for _, key := range v.other[source.ID.Name] {
		elsewhere = elsewhere || good(key) && v.answers(key.Disk)
	}
	return here, elsewhere
}

// plainClone reports whether the first copy is to be a copy of one on this node, byte by
// byte. What it has to be is known then, whoever is silent.
func (v imageView) plainClone() bool {
	c := v.image.Source.Clone
	if unsupported[Clone] || c == nil || c.Encryption != schema.EncryptionIgnore || len(v.ready) > 0 {
		return false
	}
	here, _ := v.clones()
	return len(here) > 0
}

// cannotClone says why this node leaves it to another one to clone.
func (v imageView) cannotClone() string {
	if here, elsewhere := v.clones(); len(here) == 0 && elsewhere {
		return fmt.Sprintf("image %s, which it is cloned from, has no ready copy on this node", v.image.Source.Clone.BackingImage)
	}
	return ""
}

// clone makes the first copy of a ready copy of the source on this node.
func (v imageView) clone(ref schema.DiskRef, reason string) Action {
	c := v.image.Source.Clone
	here, _ := v.clones()
	if len(here) == 0 && !v.o.Running[Key{ref, v.image.ID}] {
		if _, declared := v.Config.Images[c.BackingImage]; !declared {
			return v.blocked(ref, fmt.Sprintf("image %s, which it is cloned from, is not declared", c.BackingImage))
		}
		return v.wait(ref, fmt.Sprintf("image %s, which it is cloned from, is not ready yet", c.BackingImage))
	}
	if last := v.recall(); c.Encryption == schema.Encrypt && !last.digest.IsZero() {
		a := v.wait(ref, "encrypted anew it has other bytes, which may take the place of the lost ones only after the recovery interval")
		a.Until = last.until
		return a
	}
	a := v.make(Clone, ref, reason)
	if len(here) > 0 {
		a = v.reading(a, nearest(here, ref))
	}
	return a
}

// nearest is the copy on the same disk, of which extents can be shared, or the first.
func nearest(copies []Key, ref schema.DiskRef) Key {
	for _, key := range copies {
		if key.Disk == ref {
			return key
		}
	}
	return copies[0]
}

// sum is the digest that the bytes are known to have before there is a copy: the
// declared one, or that of an image that this one is a plain clone of.
func (v imageView) sum() disk.Digest {
	if !v.image.Checksum.IsZero() {
		return v.image.Checksum
	}
	return v.Desired.clonedSum(v.o, v.image)
}

// clonedSum is the digest of what an image is a plain clone of, as far as it is clear.
func (d Desired) clonedSum(o Observed, image schema.Image) (sum disk.Digest) {
	if c := image.Source.Clone; c == nil || c.Encryption != schema.EncryptionIgnore {
		return disk.Digest{}
	}
	source, declared := d.Config.Images[image.Source.Clone.BackingImage]
	if !declared {
		return disk.Digest{}
	}
	for ref, seen := range o.Disks {
		c, ready := seen.ready(source.ID)
		if !ready || c.Leaving || notDeclared(source, c) != "" || !d.mine(ref) && !o.Peers[ref.Node].answers() {
			continue
		}
		if !sum.IsZero() && c.SHA512 != sum {
			return disk.Digest{} // copies differ
		}
		sum = c.SHA512
	}
	return sum
}
