package plan

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// fleetIndex divides the work of planning for all nodes of a cluster. Each image is planned
// only for the few nodes that it may concern. The result is the same as when each node plans
// all images.
type fleetIndex struct {
	copiesByName  map[string][]CopyRef           // all copies by image name, sorted
	digestsByName map[string][]disk.Digest       // the digests of these copies
	namesByDigest map[disk.Digest][]string       // the images with copies of that digest
	undeclared    []string                       // images with copies that are not declared
	maxSize       map[string]int64               // bytes that a new copy takes, at most
	imagesByNode  map[string]map[string]struct{} // the images that may concern a node
}

// newFleetIndex indexes the published disks.
func newFleetIndex(d Desired, disks map[schema.DiskRef]Disk) *fleetIndex {
	h := &fleetIndex{copiesByName: map[string][]CopyRef{}, digestsByName: map[string][]disk.Digest{}, namesByDigest: map[disk.Digest][]string{}, maxSize: map[string]int64{}, imagesByNode: map[string]map[string]struct{}{}}
	largest := map[disk.Digest]int64{}
	for _, ref := range slices.SortedFunc(maps.Keys(disks), CompareDisks) {
		for _, id := range slices.SortedFunc(maps.Keys(disks[ref].Copies), CompareIDs) {
			c := disks[ref].Copies[id]
			h.copiesByName[id.Name] = append(h.copiesByName[id.Name], CopyRef{ref, id})
			h.maxSize[id.Name] = max(h.maxSize[id.Name], c.RealSize)
			for _, sum := range []disk.Digest{c.SHA512, c.SHA256} {
				if names := h.namesByDigest[sum]; !sum.IsZero() && !slices.Contains(names, id.Name) {
					h.namesByDigest[sum], h.digestsByName[id.Name] = append(names, id.Name), append(h.digestsByName[id.Name], sum)
				}
				largest[sum] = max(largest[sum], c.RealSize)
			}
		}
	}
	for name := range h.copiesByName {
		if _, declared := d.Config.Images[name]; !declared {
			h.undeclared = append(h.undeclared, name)
		}
	}
	for name, image := range d.Config.Images {
		if sum := image.Checksum; !sum.IsZero() {
			h.maxSize[name] = max(h.maxSize[name], largest[sum])
		}
	}
	return h
}

// addImage notes that an image may concern a node.
func (h *fleetIndex) addImage(node, name string) {
	if h.imagesByNode[node] == nil {
		h.imagesByNode[node] = map[string]struct{}{}
	}
	h.imagesByNode[node][name] = struct{}{}
}

// addInProgress adds the images with failures and running jobs.
func (h *fleetIndex) addInProgress(c *Cluster) {
	for key := range c.Failures {
		h.addImage(key.Disk.Node, key.ID.Name)
	}
	for key := range c.Running {
		h.addImage(key.Disk.Node, key.ID.Name)
	}
}

// addTargets adds each image to the nodes where a copy of it is missing, not settled or
// surplus, and whose disks were rejected. The nodes plan by what they publish, so that this
// works from the point of view of an observer without disks.
func (h *fleetIndex) addTargets(d Desired, o Observed) {
	d.Node, d.OnlyDisks = "", nil
	s := d.newIndex(o)
	for name, image := range d.Config.Images {
		v := s.newImagePlanner(image)
		targets := map[schema.DiskRef]bool{}
		for _, ref := range v.placement.targets {
			targets[ref] = true
			if image.Backup != nil || !v.isSettled(CopyRef{ref, image.ID}) {
				h.addImage(ref.Node, name)
			}
		}
		for _, key := range h.copiesByName[name] {
			if !targets[key.Disk] || !v.isSettled(key) {
				h.addImage(key.Disk.Node, name)
			}
		}
		for _, ref := range image.Disks {
			h.addImage(ref.Node, name)
		}
		for ref := range v.placement.rejected {
			h.addImage(ref.Node, name)
		}
	}
}

// isSettled reports whether nothing must be done about a copy on a desired disk.
func (v imagePlanner) isSettled(key CopyRef) bool {
	c := v.ix.copyAt(key)
	return key.ID == v.image.ID && c.State == disk.Ready && c.HasCfg && !c.ManifestDigest.IsZero() && !v.ix.suspects[key] && v.mismatch[key].IsZero()
}

// images returns the images that may concern a node. all: return every image, as for the first
// node, which also reports what concerns no disk.
func (h *fleetIndex) images(d Desired, all bool) []schema.Image {
	if all {
		return slices.Collect(maps.Values(d.Config.Images))
	}
	var images []schema.Image
	for name := range h.imagesByNode[d.Node] {
		if image, declared := d.Config.Images[name]; declared {
			images = append(images, image)
		}
	}
	return images
}

// newIndex returns the index of d and o with the copies that matter for these images.
func (h *fleetIndex) newIndex(d Desired, o Observed, images []schema.Image) *index {
	s := d.emptyIndex(o)
	for ref, seen := range o.Disks {
		if seen.Problem == "" && d.Owns(ref) {
			s.ownDisks = append(s.ownDisks, ref)
		}
	}
	slices.SortFunc(s.ownDisks, CompareDisks)
	for name := range h.closure(images) {
		for _, key := range h.copiesByName[name] {
			seen := o.Disks[key.Disk]
			if c, there := seen.Copies[key.ID]; there && seen.Problem == "" {
				s.addCopy(key, c, d.Owns(key.Disk))
			}
		}
	}
	for _, sums := range []map[disk.Digest][]CopyRef{s.ownByDigest, s.peerByDigest} {
		for _, keys := range sums {
			slices.SortFunc(keys, func(a, b CopyRef) int {
				if a.Disk != b.Disk {
					return CompareDisks(a.Disk, b.Disk)
				}
				return CompareIDs(a.ID, b.ID)
			})
		}
	}
	return s
}

// closure returns the names of the images whose copies matter for these images: their own, the
// images that they are cloned from, images with the same bytes, and all orphans.
func (h *fleetIndex) closure(images []schema.Image) map[string]bool {
	names := map[string]bool{}
	same := func(sum disk.Digest) {
		for _, name := range h.namesByDigest[sum] {
			names[name] = true
		}
	}
	for _, image := range images {
		same(image.Checksum)
		own := []string{image.ID.Name}
		if clone := image.Source.Clone; clone != nil {
			own = append(own, clone.BackingImage)
		}
		for _, name := range own {
			names[name] = true
			for _, sum := range h.digestsByName[name] {
				same(sum)
			}
		}
	}
	for _, name := range h.undeclared {
		names[name] = true
		for _, sum := range h.digestsByName[name] {
			same(sum)
		}
	}
	return names
}

// mayReject returns the images that a disk of the node may reject. All others certainly fit.
func (h *fleetIndex) mayReject(d Desired, o Observed) []schema.Image {
	var images []schema.Image
	for name, image := range d.Config.Images {
		may := d.Allowed == schema.ObserveOnly || image.Source.Clone != nil || o.CannotPrepare[image.ID] != ""
		for diskName, declared := range d.Config.Nodes[d.Node].Disks {
			ref := schema.DiskRef{Node: d.Node, Disk: diskName}
			seen := o.Disks[ref]
			need := max(1, h.maxSize[name], o.Failures[CopyRef{ref, image.ID}].NeedsSpace)
			may = may || need > seen.Space.Free-declared.StorageReserved || seen.Copies[image.ID].State == disk.Failed
		}
		if may {
			images = append(images, image)
		}
	}
	return images
}
