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
	bytes map[disk.Digest][]Key // ready copies on own disks by what they are, sorted
	// suspect are copies of which a copy came out wrong. They are verified, and
	// neither read nor counted on before.
	suspect map[Key]bool
}

func (d Desired) scene(o Observed) *scene {
	s := &scene{Desired: d, o: o, named: map[string][]Key{}, bytes: map[disk.Digest][]Key{}, suspect: map[Key]bool{}}
	for _, t := range o.Tries {
		for _, key := range t.Suspects {
			s.suspect[key] = true
		}
	}
	for ref, seen := range o.Disks {
		if d.mine(ref) && seen.Problem == "" {
			s.own = append(s.own, ref)
		}
	}
	slices.SortFunc(s.own, compareRefs)
	for _, ref := range s.own {
		copies := o.Disks[ref].Copies
		for _, id := range slices.SortedFunc(maps.Keys(copies), compareIDs) {
			s.index(Key{ref, id}, copies[id])
		}
	}
	return s
}

func (s *scene) index(key Key, c Copy) {
	s.named[key.ID.Name] = append(s.named[key.ID.Name], key)
	if c.State != disk.Ready || s.suspect[key] {
		return
	}
	for _, sum := range []disk.Digest{c.SHA512, c.SHA256} {
		if !sum.IsZero() {
			s.bytes[sum] = append(s.bytes[sum], key)
		}
	}
}

func (s *scene) copy(key Key) Copy { return s.o.Disks[key.Disk].Copies[key.ID] }

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
	// other says why a copy that is ready is not one of them.
	other map[Key]string
}

func (s *scene) look(image schema.Image) imageView {
	v := imageView{scene: s, image: image, other: map[Key]string{}}
	for ref, seen := range s.o.Disks {
		c, isReady := seen.ready(image.ID)
		if !isReady {
			continue
		}
		key := Key{ref, image.ID}
		if why := notDeclared(image, c); why != "" {
			v.other[key] = why
			continue
		}
		v.ready = append(v.ready, key)
	}
	v.places = v.place()
	slices.SortFunc(v.ready, func(a, b Key) int { return v.places.compare(a.Disk, b.Disk) })
	return v
}

// notDeclared says why a ready copy is not what is declared.
func notDeclared(image schema.Image, c Copy) string {
	switch {
	case image.Checksum.IsZero(), c.Has(image.Checksum):
		return ""
	case image.Checksum.Algorithm() == disk.SHA256 && c.SHA256.IsZero():
		return needsSHA256
	}
	return "the file there has checksum " + c.SHA512.String() + ", declared is " + image.Checksum.String() +
		": declare that checksum or another uuid"
}

const needsSHA256 = "its SHA-256 is not known yet"

// sameBytes are the ready copies on this node of what the image has to be: its
// own, or those of any other image if the checksum is declared.
func (v imageView) sameBytes() []Key {
	var keys []Key
	for _, key := range v.ready {
		if v.mine(key.Disk) && !v.suspect[key] {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return v.bytes[v.image.Checksum]
	}
	return keys
}
