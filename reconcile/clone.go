package reconcile

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// clones are the ready copies of the image that another one is cloned from: those on
// disks of this node, and those elsewhere.
func (v imageView) clones() (here, there []Key) {
	source, declared := v.Config.Images[v.image.Source.Clone.BackingImage]
	if !declared {
		return nil, nil
	}
	good := func(key Key) bool {
		c := v.copy(key)
		return key.ID == source.ID && c.State == disk.Ready && !c.Leaving && !v.suspect[key] && notDeclared(source, c) == "" && v.answers(key.Disk)
	}
	for _, key := range v.all(source.ID.Name) {
		switch {
		case !good(key):
		case v.mine(key.Disk):
			here = append(here, key)
		default:
			there = append(there, key)
		}
	}
	return here, there
}

// plain reports whether the image is a clone with the bytes of its source.
func (v imageView) plain() bool {
	c := v.image.Source.Clone
	return c != nil && c.Encryption == schema.EncryptionIgnore
}

// clonesHere reports whether the first copy is to be a copy of one on this node, byte by
// byte.
func (v imageView) clonesHere() bool {
	if !v.plain() || len(v.ready) > 0 {
		return false
	}
	sum := v.sum()
	here, _ := v.clones()
	return slices.ContainsFunc(here, func(key Key) bool { c := v.copy(key); return !sum.IsZero() && c.HasDigest(sum) })
}

// cannotClone says why this node leaves it to another one to clone.
func (v imageView) cannotClone() string {
	if here, there := v.clones(); len(here) == 0 && len(there) > 0 && v.differs() == "" {
		return fmt.Sprintf("image %s, which it is cloned from, has no ready copy on this node", v.image.Source.Clone.BackingImage)
	}
	return ""
}

// differs says that nobody can tell what the source of a clone is.
func (v imageView) differs() string {
	here, there := v.clones()
	all := slices.Concat(here, there)
	for _, key := range all {
		if v.copy(key).SHA512 != v.copy(all[0]).SHA512 {
			return fmt.Sprintf("the copies of image %s, which it is cloned from, differ", v.image.Source.Clone.BackingImage)
		}
	}
	return ""
}

// clone makes the first copy of a ready copy of the source on this node, or, of what
// only has to be copied, on others.
func (v imageView) clone(ref schema.DiskRef, reason string) Action {
	c := v.image.Source.Clone
	here, there := v.clones()
	if len(here) == 0 && !(v.plain() && len(there) > 0) && !v.o.Running[Key{ref, v.image.ID}] {
		if _, declared := v.Config.Images[c.BackingImage]; !declared {
			return v.blocked(ref, fmt.Sprintf("image %s, which it is cloned from, is not declared", c.BackingImage))
		}
		return v.wait(ref, fmt.Sprintf("image %s, which it is cloned from, is not ready yet", c.BackingImage))
	}
	if why := v.differs(); why != "" {
		return v.wait(ref, why)
	}
	if a, first := v.recalled(ref); first {
		return a
	}
	if from := v.sameThere(); len(here) == 0 && len(from) > 0 {
		return v.sync(ref, from, reason)
	}
	a := v.make(Clone, ref, reason)
	if len(here) > 0 {
		from := nearest(here, ref)
		if a.Bytes == UnknownBytes && v.plain() {
			a.Bytes = v.copy(from).Size
		}
		a = v.reading(a, from)
	}
	return a
}

// recalled waits where the clone would have other bytes than the image had.
func (v imageView) recalled(ref schema.DiskRef) (a Action, first bool) {
	last := v.recall()
	if last.digest.IsZero() || v.image.Source.Clone.Encryption == schema.Decrypt || v.plain() && v.sum() == last.digest {
		return Action{}, false
	}
	a = v.wait(ref, "cloned anew it has other bytes, which may take the place of the lost ones only after the recovery interval")
	a.Until = last.until
	return a, true
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

// sum is the digest that the bytes are known to have: the declared one, or, before
// there is a copy, that of an image that this one is a plain clone of.
func (v imageView) sum() disk.Digest {
	if !v.image.Checksum.IsZero() {
		return v.image.Checksum
	}
	if !v.plain() || len(v.ready) > 0 || v.differs() != "" {
		return disk.Digest{}
	}
	here, there := v.clones()
	for _, key := range slices.Concat(here, there) {
		return v.copy(key).SHA512
	}
	return disk.Digest{}
}
