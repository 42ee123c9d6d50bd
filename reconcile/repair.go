package reconcile

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// repairable reports whether the chunks of a failed copy that are damaged can be had
// from somewhere: they have to be what the copy's own manifest says. One
// that could not be repaired is replaced instead, if it can be.
func (v imageView) repairable(key Key) bool {
	c := v.copy(key)
	if c.ManifestDigest.IsZero() || c.SHA512.IsZero() {
		return false
	}
	if declared := v.image.Checksum; !declared.IsZero() && declared != c.SHA512 && declared != c.SHA256 {
		return false
	}
	if c.Using == "" && v.othersReady(c) {
		return false
	}
	if v.o.Tries[key].Unrepairable && c.Using == "" && v.refusesFor(key.Disk, v.need()).why == "" {
		return false
	}
	return len(v.intact(key)) > 0 || v.hasRanges()
}

// othersReady reports whether the image, whose bytes nobody declared, has others by now than
// the copy had: repaired it would be in conflict with them.
func (v imageView) othersReady(c Copy) bool {
	return !v.established() && len(v.ready) > 0 &&
		!slices.ContainsFunc(v.ready, func(key Key) bool { return v.copy(key).SHA512 == c.SHA512 })
}

// intact are ready copies with the bytes that a failed one should have, those of this
// node first.
func (v imageView) intact(key Key) []Key {
	sum := v.copy(key).SHA512
	if here := v.bytes[sum]; len(here) > 0 {
		return here
	}
	return v.there[sum]
}

// hasRanges reports whether any chunk can be had from the source, and will be what it
// has to be.
func (v imageView) hasRanges() bool {
	d := v.image.Source.Download
	return d != nil && d.Unpack == schema.UnpackNone && !v.image.Checksum.IsZero()
}

// repair rewrites the damaged chunks of a failed copy in their place.
func (v imageView) repair(key Key) Action {
	a := v.try(Repair, key.Disk, v.copy(key).Message, disk.ChunkSize)
	if from := v.intact(key); len(from) > 0 {
		return v.reading(a, from[0])
	}
	return a
}
