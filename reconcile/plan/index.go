package plan

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// index is what is desired beside what was seen, indexed, so that planning costs
// in proportion to the images and the copies, and not to their product.
type index struct {
	desired      Desired
	observed     Observed
	ownDisks     []schema.DiskRef          // disks of this node that can be used, sorted
	ownByName    map[string][]CopyRef      // copies on own disks by name of the image, sorted
	peerByName   map[string][]CopyRef      // copies on other disks, likewise; of silent nodes as these said last
	ownByDigest  map[disk.Digest][]CopyRef // ready copies on own disks by what they are, sorted
	peerByDigest map[disk.Digest][]CopyRef // those on other nodes that can be copied
	// suspects are copies of which a copy came out wrong. They are verified, and
	// neither read nor counted on before.
	suspects  map[CopyRef]bool
	suspended []schema.Image // see heldImages
	rankings  *RankCache
	scratch   []rankedDisk // memory for rankings that are not kept
}

func (d Desired) emptyIndex(o Observed) *index {
	s := &index{
		desired: d, observed: o, ownByName: map[string][]CopyRef{}, peerByName: map[string][]CopyRef{},
		ownByDigest: map[disk.Digest][]CopyRef{}, peerByDigest: map[disk.Digest][]CopyRef{}, suspects: Suspects(o.Failures), rankings: d.RankCache,
	}
	if s.rankings == nil {
		s.rankings = NewRankCache(d.Config.Nodes, 0)
	}
	return s
}

func (d Desired) NewIndex(o Observed) *index {
	s := d.emptyIndex(o)
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), CompareDisks) {
		seen := o.Disks[ref]
		if seen.Problem != "" {
			continue
		}
		own := d.Owns(ref)
		if own {
			s.ownDisks = append(s.ownDisks, ref)
		}
		for _, id := range slices.SortedFunc(maps.Keys(seen.Copies), CompareIDs) {
			s.addCopy(CopyRef{ref, id}, seen.Copies[id], own)
		}
	}
	return s
}

// Suspects are the copies that gave other bytes than their own.
func Suspects(tries map[CopyRef]Failure) map[CopyRef]bool {
	all := map[CopyRef]bool{}
	for _, t := range tries {
		for _, key := range t.Suspects {
			all[key] = true
		}
	}
	return all
}

func (s *index) addCopy(key CopyRef, c Copy, own bool) {
	names, sums := s.ownByName, s.ownByDigest
	if !own {
		names, sums = s.peerByName, s.peerByDigest
	}
	names[key.ID.Name] = append(names[key.ID.Name], key)
	if c.State != disk.Ready || c.Leaving || s.suspects[key] || !own && !(s.isCurrent(key.Disk) && !c.ManifestDigest.IsZero()) {
		return
	}
	for _, sum := range []disk.Digest{c.SHA512, c.SHA256} {
		if !sum.IsZero() {
			sums[sum] = append(sums[sum], key)
		}
	}
}

func (s *index) copyAt(key CopyRef) Copy { return s.observed.Disks[key.Disk].Copies[key.ID] }

// copiesNamed are the copies of the images of one name, on whatever disk.
func (s *index) copiesNamed(name string) []CopyRef {
	return slices.Concat(s.ownByName[name], s.peerByName[name])
}

// isCurrent reports whether what is known of the disk stands: it is this node's, or
// that of a node that answers.
func (s *index) isCurrent(ref schema.DiskRef) bool {
	_, known := s.observed.Disks[ref]
	return known && (s.desired.Owns(ref) || s.observed.Peers[ref.Node].Responds())
}

func CompareDisks(a, b schema.DiskRef) int {
	return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Disk, b.Disk))
}

func CompareIDs(a, b disk.ID) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.UUID, b.UUID))
}

// imagePlanner is one declared image as it is on all disks.
type imagePlanner struct {
	ix        *index
	image     schema.Image
	Placement placement
	// ready are the copies of the wanted generation that have the declared
	// digest, or all have the same one; in order of rank, others after them.
	ready []CopyRef
	// mismatch says why a copy that is ready is not one of them.
	mismatch map[CopyRef]string
}

// NewImagePlanner views one image. A view is good until the next one is made of the same scene.
func (s *index) NewImagePlanner(image schema.Image) imagePlanner {
	v := s.findReady(image)
	ranked, kept := s.rankings.rank(image, s.scratch)
	if !kept {
		s.scratch = ranked.disks
	}
	v.Placement = v.place(ranked)
	ranked.order(v.ready)
	return v
}

// findReady is a look at what is there of one image, and not at where it should be: its ready
// copies are in no order.
func (s *index) findReady(image schema.Image) imagePlanner {
	v := imagePlanner{ix: s, image: image, mismatch: map[CopyRef]string{}}
	for _, key := range s.copiesNamed(image.ID.Name) {
		c := s.copyAt(key)
		if key.ID != image.ID || c.State != disk.Ready || !s.isCurrent(key.Disk) {
			continue
		}
		if why := mismatchReason(image, c); why != "" {
			v.mismatch[key] = why
			continue
		}
		if s.desired.Owns(key.Disk) || !c.Leaving {
			v.ready = append(v.ready, key)
		}
	}
	return v
}

// ReadyCopies returns the ready copies of a declared image that have the bytes which the
// configuration asks for, on this node and on nodes that respond, in no order.
func (d Desired) ReadyCopies(o Observed, image schema.Image) []CopyRef {
	return d.NewIndex(o).findReady(image).ready
}

// mismatchReason says why a ready copy is not what is declared.
func mismatchReason(image schema.Image, c Copy) string {
	switch {
	case image.Checksum.IsZero(), c.HasDigest(image.Checksum):
		return ""
	case image.Checksum.Algorithm() == disk.SHA256 && c.SHA256.IsZero():
		return needsSHA256
	}
	return "the file there has checksum " + c.SHA512.String() + ", declared is " + image.Checksum.String() +
		": declare that checksum or another uuid"
}

const needsSHA256 = "its SHA-256 is not known yet"

// ownSources are the ready copies on this node of what the image has to be: its own,
// or those of any other image if the checksum is declared.
func (v imagePlanner) ownSources() []CopyRef {
	return v.sources(v.ix.ownByDigest, func(key CopyRef) bool { return v.ix.desired.Owns(key.Disk) && !v.ix.suspects[key] })
}

// peerSources are those on other nodes that can be copied.
func (v imagePlanner) peerSources() []CopyRef {
	return v.sources(v.ix.peerByDigest, func(key CopyRef) bool {
		return !v.ix.desired.Owns(key.Disk) && !v.ix.copyAt(key).ManifestDigest.IsZero()
	})
}

func (v imagePlanner) sources(by map[disk.Digest][]CopyRef, usable func(CopyRef) bool) []CopyRef {
	var keys []CopyRef
	for _, key := range v.ready {
		if usable(key) && !v.ix.copyAt(key).Leaving {
			keys = append(keys, key)
		}
	}
	if sum := v.knownDigest(); len(keys) == 0 && !sum.IsZero() {
		return by[sum]
	}
	return keys
}
