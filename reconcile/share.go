package reconcile

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// share divides the work of planning for all nodes of a cluster: each image has to be
// looked at for the nodes that may have something to do with it, and these are few. A
// plan that is made so is the same as one that looks at all images for every node.
type share struct {
	names map[string][]Key               // all copies by name of the image, sorted
	sums  map[string][]disk.Digest       // what they are
	bytes map[disk.Digest][]string       // and the names of what is the same
	gone  []string                       // names that are not declared
	big   map[string]int64               // what a new copy takes, at most
	on    map[string]map[string]struct{} // by node, the images that may concern it
}

// newShare indexes what the nodes would show each other.
func newShare(d Desired, disks map[schema.DiskRef]Disk) *share {
	h := &share{names: map[string][]Key{}, sums: map[string][]disk.Digest{}, bytes: map[disk.Digest][]string{}, big: map[string]int64{}, on: map[string]map[string]struct{}{}}
	largest := map[disk.Digest]int64{}
	for _, ref := range slices.SortedFunc(maps.Keys(disks), compareRefs) {
		for _, id := range slices.SortedFunc(maps.Keys(disks[ref].Copies), compareIDs) {
			c := disks[ref].Copies[id]
			h.names[id.Name] = append(h.names[id.Name], Key{ref, id})
			h.big[id.Name] = max(h.big[id.Name], c.RealSize)
			for _, sum := range []disk.Digest{c.SHA512, c.SHA256} {
				if names := h.bytes[sum]; !sum.IsZero() && !slices.Contains(names, id.Name) {
					h.bytes[sum], h.sums[id.Name] = append(names, id.Name), append(h.sums[id.Name], sum)
				}
				largest[sum] = max(largest[sum], c.RealSize)
			}
		}
	}
	for name := range h.names {
		if _, declared := d.Config.Images[name]; !declared {
			h.gone = append(h.gone, name)
		}
	}
	for name, image := range d.Config.Images {
		if sum := image.Checksum; !sum.IsZero() {
			h.big[name] = max(h.big[name], largest[sum])
		}
	}
	return h
}

// concern notes that an image may have something to do with a node.
func (h *share) concern(node, name string) {
	if h.on[node] == nil {
		h.on[node] = map[string]struct{}{}
	}
	h.on[node][name] = struct{}{}
}

// begun notes where something failed or is under way, whatever is wanted.
func (h *share) begun(c *Cluster) {
	for key := range c.Tries {
		h.concern(key.Disk.Node, key.ID.Name)
	}
	for key := range c.Running {
		h.concern(key.Disk.Node, key.ID.Name)
	}
}

// wanted notes where a copy of each image is missing, is not as it should be, or should not
// be, and which disks were passed over, as one sees it who has no disks: what the nodes show
// of their disks is all that they go by themselves.
func (h *share) wanted(d Desired, o Observed) {
	d.Node, d.Picked = "", nil
	s := d.scene(o)
	for name, image := range d.Config.Images {
		v := s.look(image)
		want := map[schema.DiskRef]bool{}
		for _, ref := range v.places.want {
			want[ref] = true
			if image.Backup != nil || !v.right(Key{ref, image.ID}) {
				h.concern(ref.Node, name)
			}
		}
		for _, key := range h.names[name] {
			if !want[key.Disk] || !v.right(key) {
				h.concern(key.Disk.Node, name)
			}
		}
		for _, ref := range image.Disks {
			h.concern(ref.Node, name)
		}
		for ref := range v.places.refused {
			h.concern(ref.Node, name)
		}
	}
}

// right reports whether nothing has to be done about a copy on a disk that wants one.
func (v imageView) right(key Key) bool {
	c := v.copy(key)
	return key.ID == v.image.ID && c.State == disk.Ready && c.HasCfg && !c.ManifestDigest.IsZero() && !v.suspect[key] && v.wrong[key] == ""
}

// images are those that may concern a node; for the first one all, since it tells of what
// concerns no disk.
func (h *share) images(d Desired, all bool) []schema.Image {
	if all {
		return slices.Collect(maps.Values(d.Config.Images))
	}
	var images []schema.Image
	for name := range h.on[d.Node] {
		if image, declared := d.Config.Images[name]; declared {
			images = append(images, image)
		}
	}
	return images
}

// scene is that of d and o, as far as these images go.
func (h *share) scene(d Desired, o Observed, images []schema.Image) *scene {
	s := d.emptyScene(o)
	for ref, seen := range o.Disks {
		if seen.Problem == "" && d.mine(ref) {
			s.own = append(s.own, ref)
		}
	}
	slices.SortFunc(s.own, compareRefs)
	for name := range h.related(images) {
		for _, key := range h.names[name] {
			seen := o.Disks[key.Disk]
			if c, there := seen.Copies[key.ID]; there && seen.Problem == "" {
				s.index(key, c, d.mine(key.Disk))
			}
		}
	}
	for _, sums := range []map[disk.Digest][]Key{s.bytes, s.there} {
		for _, keys := range sums {
			slices.SortFunc(keys, func(a, b Key) int {
				if a.Disk != b.Disk {
					return compareRefs(a.Disk, b.Disk)
				}
				return compareIDs(a.ID, b.ID)
			})
		}
	}
	return s
}

// related are the names of which the copies matter for these images: their own, those that
// they are cloned from, those of the same bytes, and all that nobody declares any more.
func (h *share) related(images []schema.Image) map[string]bool {
	names := map[string]bool{}
	same := func(sum disk.Digest) {
		for _, name := range h.bytes[sum] {
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
			for _, sum := range h.sums[name] {
				same(sum)
			}
		}
	}
	for _, name := range h.gone {
		names[name] = true
		for _, sum := range h.sums[name] {
			same(sum)
		}
	}
	return names
}

// refusing are the images that a disk of the node may take no copy of: all others are
// sure to find room there.
func (h *share) refusing(d Desired, o Observed) []schema.Image {
	var images []schema.Image
	for name, image := range d.Config.Images {
		may := d.May == schema.ObserveOnly || image.Source.Clone != nil || o.Unable[image.ID] != ""
		for diskName, declared := range d.Config.Nodes[d.Node].Disks {
			ref := schema.DiskRef{Node: d.Node, Disk: diskName}
			seen := o.Disks[ref]
			need := max(1, h.big[name], o.Tries[Key{ref, image.ID}].Space)
			may = may || need > seen.Space.Free-declared.StorageReserved || seen.Copies[image.ID].State == disk.Failed
		}
		if may {
			images = append(images, image)
		}
	}
	return images
}
