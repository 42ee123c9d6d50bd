package reconcile

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// ranked returns the disks that may hold the image, best first. It is a function
// of the configuration alone, so every node has the same list; when a disk comes
// or goes the order of the others stays, so little moves. Every node's best disk
// comes before any node's second.
//
// The rank of a disk is the SHA-256 of image, node and disk name, each preceded
// by its length as 8 bytes, big-endian; the smallest is best.
func ranked(c schema.Config, image schema.Image) []schema.DiskRef {
	type place struct {
		ref   schema.DiskRef
		round int // how many disks of the same node are better
		score [sha256.Size]byte
	}
	var places []place
	for name, node := range c.Nodes {
		if node.EvictionRequested || !hasAll(node.Tags, image.NodeSelector) {
			continue
		}
		var own []place
		for diskName, d := range node.Disks {
			if !d.EvictionRequested && hasAll(d.Tags, image.DiskSelector) {
				own = append(own, place{ref: schema.DiskRef{Node: name, Disk: diskName}, score: score(image.ID.Name, name, diskName)})
			}
		}
		slices.SortFunc(own, func(a, b place) int { return bytes.Compare(a.score[:], b.score[:]) })
		for i := range own {
			own[i].round = i
		}
		places = append(places, own...)
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.round, b.round), bytes.Compare(a.score[:], b.score[:]))
	})
	refs := make([]schema.DiskRef, len(places))
	for i, p := range places {
		refs[i] = p.ref
	}
	return refs
}

func score(parts ...string) [sha256.Size]byte {
	var b []byte
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

// hasAll reports whether tags hold every selector. No selector matches anything.
func hasAll(tags, selectors []string) bool {
	return !slices.ContainsFunc(selectors, func(s string) bool { return !slices.Contains(tags, s) })
}

// placement is what the walk over the ranked disks of an image gives.
type placement struct {
	ranked []schema.DiskRef
	want   []schema.DiskRef // that should have a copy, best first
	short  int              // copies that no disk can take
	cannot map[schema.DiskRef]string
}

// place walks over the ranked disks: the first that have a copy or can take one
// are wanted, and those that the image names. need is how many bytes a new copy
// takes, as far as that is known.
func (d Desired) place(o Observed, image schema.Image, need int64) placement {
	p := placement{ranked: ranked(d.Config, image), cannot: map[schema.DiskRef]string{}}
	copies := image.Copies
	if image.AllDisks {
		copies = len(p.ranked)
	}
	for _, ref := range p.ranked {
		if len(p.want) == copies {
			break
		}
		if why := d.cannotTake(o, ref, image, need); why != "" {
			p.cannot[ref] = why
			continue
		}
		p.want = append(p.want, ref)
	}
	p.short = copies - len(p.want)
	for _, ref := range image.Disks {
		if _, declared := d.disk(ref); declared && !slices.Contains(p.want, ref) {
			p.want = append(p.want, ref)
		}
	}
	return p
}

func (d Desired) disk(ref schema.DiskRef) (schema.Disk, bool) {
	declared, ok := d.Config.Nodes[ref.Node].Disks[ref.Disk]
	return declared, ok
}

// cannotTake says why a disk that matches gets no new copy, so that the next in
// rank acts for it. A ready copy that it has counts all the same.
func (d Desired) cannotTake(o Observed, ref schema.DiskRef, image schema.Image, need int64) string {
	seen, known := o.Disks[ref]
	if !known && ref.Node != d.Node {
		return "" // it is up to that node
	}
	if _, ready := seen.ready(image.ID); ready {
		return ""
	}
	node, declared := d.Config.Nodes[ref.Node], d.Config.Nodes[ref.Node].Disks[ref.Disk]
	try := o.Tries[Key{ref, image.ID}]
	switch {
	case !known:
		return "not looked at"
	case seen.Problem != "":
		return seen.Problem
	case !node.AllowScheduling:
		return "scheduling on the node is disabled"
	case !declared.AllowScheduling:
		return "scheduling on the disk is disabled"
	case o.Running[Key{ref, image.ID}]:
		return ""
	case max(need, try.Space, 1) > seen.Space.Free-declared.StorageReserved:
		return fmt.Sprintf("not enough space: %s are free and %s reserved",
			bytesText(seen.Space.Free), bytesText(declared.StorageReserved))
	case try.Disk && o.Now.Sub(try.Since) >= d.Config.Settings.RecoveryWaitInterval:
		return try.Message
	}
	return ""
}
