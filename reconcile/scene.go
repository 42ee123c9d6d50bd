package reconcile

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// scene is what is desired beside what was seen, indexed, so that planning costs
// in proportion to the images and the copies, and not to their product.
type scene struct {
	Desired
	o     Observed
	own   []schema.DiskRef      // disks of this node that can be used, sorted
	named map[string][]Key      // copies on own disks by name of the image, sorted
	other map[string][]Key      // copies on other disks, likewise; of silent nodes as these said last
	bytes map[disk.Digest][]Key // ready copies on own disks by what they are, sorted
	there map[disk.Digest][]Key // those on other nodes that can be copied
	// suspect are copies of which a copy came out wrong. They are verified, and
	// neither read nor counted on before.
	suspect map[Key]bool
	held    []schema.Image // see heldImages
	ranks   *ranks
	places  []place // memory for rankings that are not kept
}

func (d Desired) emptyScene(o Observed) *scene {
	s := &scene{
		Desired: d, o: o, named: map[string][]Key{}, other: map[string][]Key{},
		bytes: map[disk.Digest][]Key{}, there: map[disk.Digest][]Key{}, suspect: suspects(o.Tries), ranks: d.ranks,
	}
	if s.ranks == nil {
		s.ranks = newRanks(d.Config.Nodes, 0)
	}
	return s
}

func (d Desired) scene(o Observed) *scene {
	s := d.emptyScene(o)
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), compareRefs) {
		seen := o.Disks[ref]
		if seen.Problem != "" {
			continue
		}
		own := d.mine(ref)
		if own {
			s.own = append(s.own, ref)
		}
		for _, id := range slices.SortedFunc(maps.Keys(seen.Copies), compareIDs) {
			s.index(Key{ref, id}, seen.Copies[id], own)
		}
	}
	return s
}

// suspects are the copies that gave other bytes than their own.
func suspects(tries map[Key]Try) map[Key]bool {
	all := map[Key]bool{}
	for _, t := range tries {
		for _, key := range t.Suspects {
			all[key] = true
		}
	}
	return all
}

func (s *scene) index(key Key, c Copy, own bool) {
	names, sums := s.named, s.bytes
	if !own {
		names, sums = s.other, s.there
	}
	names[key.ID.Name] = append(names[key.ID.Name], key)
	if c.State != disk.Ready || c.Leaving || s.suspect[key] || !own && !(s.answers(key.Disk) && !c.ManifestDigest.IsZero()) {
		return
	}
	for _, sum := range []disk.Digest{c.SHA512, c.SHA256} {
		if !sum.IsZero() {
			sums[sum] = append(sums[sum], key)
		}
	}
}

func (s *scene) copy(key Key) Copy { return s.o.Disks[key.Disk].Copies[key.ID] }

// all are the copies of the images of one name, on whatever disk.
func (s *scene) all(name string) []Key { return slices.Concat(s.named[name], s.other[name]) }

// answers reports whether what is known of the disk stands: it is this node's, or
// that of a node that answers.
func (s *scene) answers(ref schema.DiskRef) bool {
	_, known := s.o.Disks[ref]
	return known && (s.mine(ref) || s.o.Peers[ref.Node].answers())
}

func compareRefs(a, b schema.DiskRef) int {
	return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Disk, b.Disk))
}

func compareIDs(a, b disk.ID) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.UUID, b.UUID))
}

// imageView is one declared image as it is on all disks.
type imageView struct {
	*scene
	image  schema.Image
	places placement
	// ready are the copies of the wanted generation that have the declared
	// digest, or all have the same one; in order of rank, others after them.
	ready []Key
	// wrong says why a copy that is ready is not one of them.
	wrong map[Key]string
}

// look views one image. A view is good until the next one is made of the same scene.
func (s *scene) look(image schema.Image) imageView {
	v := s.view(image)
	ranked, kept := s.ranks.rank(image, s.places)
	if !kept {
		s.places = ranked.places
	}
	v.places = v.place(ranked)
	ranked.order(v.ready)
	return v
}

// view is a look at what is there of one image, and not at where it should be: its ready
// copies are in no order.
func (s *scene) view(image schema.Image) imageView {
	v := imageView{scene: s, image: image, wrong: map[Key]string{}}
	for _, key := range s.all(image.ID.Name) {
		c := s.copy(key)
		if key.ID != image.ID || c.State != disk.Ready || !s.answers(key.Disk) {
			continue
		}
		if why := notDeclared(image, c); why != "" {
			v.wrong[key] = why
			continue
		}
		if s.mine(key.Disk) || !c.Leaving {
			v.ready = append(v.ready, key)
		}
	}
	return v
}

// ReadyCopies returns the ready copies of a declared image that have the bytes which the
// configuration asks for, on this node and on nodes that respond, in no order.
func (d Desired) ReadyCopies(o Observed, image schema.Image) []Key {
	return d.scene(o).view(image).ready
}

// notDeclared says why a ready copy is not what is declared.
func notDeclared(image schema.Image, c Copy) string {
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

// sameHere are the ready copies on this node of what the image has to be: its own,
// or those of any other image if the checksum is declared.
func (v imageView) sameHere() []Key {
	return v.sources(v.bytes, func(key Key) bool { return v.mine(key.Disk) && !v.suspect[key] })
}

// sameThere are those on other nodes that can be copied.
func (v imageView) sameThere() []Key {
	return v.sources(v.there, func(key Key) bool { return !v.mine(key.Disk) && !v.copy(key).ManifestDigest.IsZero() })
}

func (v imageView) sources(by map[disk.Digest][]Key, usable func(Key) bool) []Key {
	var keys []Key
	for _, key := range v.ready {
		if usable(key) && !v.copy(key).Leaving {
			keys = append(keys, key)
		}
	}
	if sum := v.sum(); len(keys) == 0 && !sum.IsZero() {
		return by[sum]
	}
	return keys
}
