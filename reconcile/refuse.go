package reconcile

import (
	"iter"
	"maps"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// refusals says which declared images the disks of this node take no copy of although
// they could have one by the configuration, and why, in words that stay the same as
// long as the reason does.
func (d Desired) refusals(o Observed) map[Key]refusal {
	return d.scene(o).refusals(maps.Values(d.Config.Images))
}

func (s *scene) refusals(images iter.Seq[schema.Image]) map[Key]refusal {
	out := map[Key]refusal{}
	for image := range images {
		v := s.view(image)
		for _, ref := range s.own {
			if !v.stands(ref) {
				continue
			}
			if s.May == schema.ObserveOnly {
				out[Key{ref, image.ID}] = refusal{why: "its manager does nothing but look"}
				continue
			}
			if r := v.refuses(ref); r.why != "" && !r.meant {
				r.why = constant(r.why)
				out[Key{ref, image.ID}] = r
			}
		}
	}
	return out
}

func constant(why string) string {
	if strings.HasPrefix(why, noSpace) {
		return noSpace
	}
	return why
}

// Placement is where one image should have copies, and where it has ready ones.
type Placement struct {
	Targets []schema.DiskRef // the desired disks, best first
	Missing int              // desired copies that no disk can take
	Ready   []Key            // ready copies of the declared generation, those on ranked disks first
	// PassedOver says why disks get no copy. It is nil when as many copies as desired are
	// ready. It has all other disks when copies are missing, and otherwise those that
	// would come before a target.
	PassedOver map[schema.DiskRef]string
}

// Desired returns how many copies the image should have.
func (p Placement) Desired() int { return len(p.Targets) + max(0, p.Missing) }

// Placements returns the placement of each declared image. It costs as much as planning.
func (d Desired) Placements(o Observed) map[disk.ID]Placement {
	s := d.scene(o)
	all := make(map[disk.ID]Placement, len(d.Config.Images))
	for _, image := range d.Config.Images {
		v := s.look(image)
		p := Placement{Targets: v.places.want, Missing: v.places.short, Ready: v.ready}
		if len(p.Ready) < p.Desired() || p.Desired() == 0 {
			p.PassedOver = v.passedBefore()
		}
		all[image.ID] = p
	}
	return all
}

func (v imageView) passedBefore() map[schema.DiskRef]string {
	if v.places.short > 0 || len(v.places.want) == 0 {
		return v.passedOver()
	}
	out := make(map[schema.DiskRef]string, len(v.places.refused))
	for ref, r := range v.places.refused {
		out[ref] = r.why
	}
	return out
}

// passedOver says of every declared disk that is not wanted for an image why it is
// not: what is missing there, or that others come first.
func (v imageView) passedOver() map[schema.DiskRef]string {
	out := map[schema.DiskRef]string{}
	for name, node := range v.Config.Nodes {
		for diskName, d := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: diskName}
			switch r, refused := v.places.refused[ref]; {
			case v.wants(ref):
			case refused:
				out[ref] = r.why
			case node.EvictionRequested || d.EvictionRequested:
				out[ref] = "its eviction is requested"
			case !hasAll(node.Tags, v.image.NodeSelector):
				out[ref] = "node tag " + missing(node.Tags, v.image.NodeSelector) + " missing"
			case !hasAll(d.Tags, v.image.DiskSelector):
				out[ref] = "disk tag " + missing(d.Tags, v.image.DiskSelector) + " missing"
			default:
				out[ref] = "other disks come first"
			}
		}
	}
	return out
}

func missing(tags, selectors []string) string {
	for _, s := range selectors {
		if !hasAll(tags, []string{s}) {
			return s
		}
	}
	return ""
}
