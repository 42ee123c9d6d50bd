package reconcile

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
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
