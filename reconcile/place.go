package reconcile

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// placement is what the walk over the ranked disks of an image gives.
type placement struct {
	ranked []schema.DiskRef
	// want are the disks that should have a copy and have it or can take it, best
	// first. The first of them makes the first copy.
	want   []schema.DiskRef
	copies int // wanted on ranked disks
	short  int // those of them that no disk takes
	// refused are the disks that were passed over, ranked and named ones.
	refused map[schema.DiskRef]refusal
}

// refusal is why a disk gets no new copy.
type refusal struct {
	why string
	// meant says that it was asked for, so that nothing is wrong.
	meant bool
}

// place walks over the ranked disks: the first that have a copy or can take one
// are wanted, and those that the image names.
func (v imageView) place() placement {
	p := placement{ranked: ranked(v.Config, v.image), copies: v.image.Copies, refused: map[schema.DiskRef]refusal{}}
	if v.image.AllDisks {
		p.copies = len(p.ranked)
	}
	need := v.need()
	var troubled []schema.DiskRef
	for _, ref := range v.begunFirst(p.ranked) {
		if len(p.want) == p.copies {
			break
		}
		switch r := v.refuses(ref, need); {
		case r.why != "":
			p.refused[ref] = r
		case v.troubled(ref):
			troubled = append(troubled, ref)
		default:
			p.want = append(p.want, ref)
		}
	}
	// A disk in trouble is tried again only if no other can act for it.
	p.want = append(p.want, troubled[:min(len(troubled), p.copies-len(p.want))]...)
	p.short = p.copies - len(p.want)
	for _, ref := range v.image.Disks {
		if _, declared := v.disk(ref); !declared || slices.Contains(p.want, ref) {
			continue
		}
		if r := v.refuses(ref, need); r.why != "" {
			p.refused[ref] = r
			continue
		}
		p.want = append(p.want, ref)
	}
	return p
}

// begunFirst puts those disks first that have begun with the first copy: nobody
// takes that over as long as they can go on, however well another one ranks.
func (v imageView) begunFirst(refs []schema.DiskRef) []schema.DiskRef {
	if len(v.ready) > 0 {
		return refs
	}
	first := slices.Clone(refs)
	slices.SortStableFunc(first, func(a, b schema.DiskRef) int { return v.notBegun(a) - v.notBegun(b) })
	return first
}

func (v imageView) notBegun(ref schema.DiskRef) int {
	key := Key{ref, v.image.ID}
	if (v.o.Running[key] || v.copy(key).PartBytes > 0) && !v.troubled(ref) {
		return 0
	}
	return 1
}

// need is how many bytes a new copy takes, as far as that is known.
func (v imageView) need() int64 {
	var need int64
	for _, key := range v.ready {
		need = max(need, v.copy(key).RealSize)
	}
	for _, key := range v.sameBytes() {
		need = max(need, v.copy(key).RealSize)
	}
	return need
}

// refuses says why a disk gets no new copy, so that the next in rank acts for it.
// A ready copy that it has counts all the same, and a file that only has to be
// verified takes no space.
func (v imageView) refuses(ref schema.DiskRef, need int64) refusal {
	seen, known := v.o.Disks[ref]
	if !known && !v.mine(ref) {
		return refusal{} // it is up to that node
	}
	c := seen.Copies[v.image.ID]
	node, declared := v.Config.Nodes[ref.Node], v.Config.Nodes[ref.Node].Disks[ref.Disk]
	switch {
	case !known:
		return refusal{why: "not looked at"}
	case seen.Problem != "":
		return refusal{why: seen.Problem}
	case v.evicting(ref):
		return refusal{why: "its eviction is requested", meant: true}
	case c.State == disk.Ready, c.State == disk.Unknown:
		return refusal{}
	case !node.AllowScheduling:
		return refusal{why: "scheduling on the node is disabled", meant: true}
	case !declared.AllowScheduling:
		return refusal{why: "scheduling on the disk is disabled", meant: true}
	case c.State == disk.Failed && c.Using != "":
		return refusal{why: "the copy there failed and is in use"}
	case v.o.Running[Key{ref, v.image.ID}]:
		return refusal{}
	}
	return v.refusesFor(ref, left(c, need))
}

// left is how many of the needed bytes have not come yet.
func left(c Copy, need int64) int64 {
	if c.PartTotal <= 0 {
		return need
	}
	return int64(float64(need) * (1 - min(1, float64(c.PartBytes)/float64(c.PartTotal))))
}

func (v imageView) refusesFor(ref schema.DiskRef, need int64) refusal {
	declared, _ := v.disk(ref)
	free := v.o.Disks[ref].Space.Free
	need = max(need, v.o.Tries[Key{ref, v.image.ID}].Space, 1)
	if need <= free-declared.StorageReserved {
		return refusal{}
	}
	why := fmt.Sprintf("not enough space: %s are free and %s reserved", bytesText(free), bytesText(declared.StorageReserved))
	if need > 1 {
		why += ", " + bytesText(need) + " are needed"
	}
	return refusal{why: why}
}

// troubled says that work on the copy has failed for so long, by the disk's
// fault, that the task moves on.
func (v imageView) troubled(ref schema.DiskRef) bool {
	t := v.o.Tries[Key{ref, v.image.ID}]
	return t.Disk && v.o.Now.Sub(t.Since) >= v.Config.Settings.RecoveryWaitInterval
}

func (p placement) compare(a, b schema.DiskRef) int {
	if ra, rb := p.rank(a), p.rank(b); ra != rb {
		return ra - rb
	}
	return compareRefs(a, b)
}

func (p placement) rank(ref schema.DiskRef) int {
	if i := slices.Index(p.ranked, ref); i >= 0 {
		return i
	}
	return len(p.ranked)
}

func (d Desired) disk(ref schema.DiskRef) (schema.Disk, bool) {
	declared, ok := d.Config.Nodes[ref.Node].Disks[ref.Disk]
	return declared, ok
}

func (d Desired) evicting(ref schema.DiskRef) bool {
	node := d.Config.Nodes[ref.Node]
	return node.EvictionRequested || node.Disks[ref.Disk].EvictionRequested
}
