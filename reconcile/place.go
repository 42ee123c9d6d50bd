package reconcile

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// placement is what the walk over the ranked disks of an image gives.
type placement struct {
	ranked *ranking
	// want are the disks that should have a copy and have it or can take it, best
	// first. The first of them makes the first copy.
	want   []schema.DiskRef
	copies int // wanted on ranked disks
	short  int // those of them that no disk takes
	// refused are the disks that were passed over, ranked and named ones.
	refused map[schema.DiskRef]refusal
}

// place walks over the ranked disks: the first that have a copy or can take one
// are wanted, and those that the image names.
func (v imageView) place(ranked *ranking) placement {
	p := placement{ranked: ranked, copies: v.image.Copies, refused: map[schema.DiskRef]refusal{}}
	if v.image.AllDisks {
		p.copies = ranked.len()
	}
	var troubled []schema.DiskRef
	begun := v.begun(ranked)
	for i := 0; i < len(begun)+ranked.len() && len(p.want) < p.copies; i++ {
		var ref schema.DiskRef
		if i < len(begun) {
			ref = begun[i]
		} else if ref = ranked.at(i - len(begun)); slices.Contains(begun, ref) {
			continue
		}
		switch r := v.refuses(ref); {
		case r.why != "":
			p.refused[ref] = r
		case v.troubled(ref):
			troubled = append(troubled, ref)
		default:
			p.want = append(p.want, ref)
		}
	}
	// A disk in trouble is tried again only if no other can act for it, and then the
	// one that is due first.
	slices.SortStableFunc(troubled, v.compareTroubled)
	p.want = append(p.want, troubled[:min(len(troubled), p.copies-len(p.want))]...)
	p.short = p.copies - len(p.want)
	v.placeNamed(&p)
	return p
}

// placeNamed adds the disks that the image names.
func (v imageView) placeNamed(p *placement) {
	for _, ref := range v.image.Disks {
		if _, declared := v.disk(ref); !declared || slices.Contains(p.want, ref) {
			continue
		}
		if r := v.refuses(ref); r.why != "" {
			p.refused[ref] = r
			continue
		}
		p.want = append(p.want, ref)
	}
}

// begun are the ranked disks that have begun with the first copy, those first where
// it is under way: nobody takes that over as long as they can go on, however well
// another one ranks.
func (v imageView) begun(ranked *ranking) []schema.DiskRef {
	if len(v.ready) > 0 {
		return nil
	}
	var keys []Key
	for _, key := range v.all(v.image.ID.Name) {
		if key.ID == v.image.ID && v.progress(key) > 0 && ranked.has(key.Disk) && !v.troubled(key.Disk) {
			keys = append(keys, key)
		}
	}
	for _, ref := range v.own { // which may have made no folder yet
		key := Key{ref, v.image.ID}
		if (v.o.Running[key] || v.Uploads[key]) && !slices.Contains(keys, key) && ranked.has(ref) && !v.troubled(ref) {
			keys = append(keys, key)
		}
	}
	ranked.order(keys)
	slices.SortStableFunc(keys, func(a, b Key) int { return cmp.Compare(v.progress(b), v.progress(a)) })
	refs := make([]schema.DiskRef, len(keys))
	for i, key := range keys {
		refs[i] = key.Disk
	}
	return refs
}

// progress is 3 for a first copy that is under way, 2 for one that a client is about to
// upload, 1 for one that was under way.
func (v imageView) progress(key Key) int {
	switch {
	case v.o.Running[key]:
		return 3
	case v.Uploads[key]:
		return 2
	case v.copy(key).PartSourceID == UploadOrigin:
		return 1
	case v.image.Source.Upload == nil && v.copy(key).PartBytes > 0 && !v.copy(key).pulled():
		return 1
	}
	return 0
}

// need is how many bytes a new copy takes, as far as that is known.
func (v imageView) need() int64 {
	var need int64
	for _, keys := range [][]Key{v.ready, v.sameHere(), v.sameThere()} {
		for _, key := range keys {
			need = max(need, v.copy(key).RealSize)
		}
	}
	return need
}

// left is how many of the needed bytes have not come yet.
func left(c Copy, need int64) int64 {
	if c.PartTotal <= 0 {
		return need
	}
	return int64(float64(need) * (1 - min(1, float64(c.PartBytes)/float64(c.PartTotal))))
}

func (v imageView) compareTroubled(a, b schema.DiskRef) int {
	due := func(ref schema.DiskRef) time.Time {
		if v.o.Running[Key{ref, v.image.ID}] {
			return time.Time{}
		}
		return v.trouble(ref).Until
	}
	return due(a).Compare(due(b))
}

// troubled says that work on the copy has failed for so long, by the fault of the
// disk or of its node's way to the source, that the task moves on.
func (v imageView) troubled(ref schema.DiskRef) bool { return v.trouble(ref).Attempts > 0 }

// trouble returns the failure for which a disk is troubled, if it is.
func (v imageView) trouble(ref schema.DiskRef) Try {
	if v.copy(Key{ref, v.image.ID}).State == disk.Ready {
		return Try{} // whatever it was, it is over
	}
	if v.image.Source.Upload != nil && len(v.ready) == 0 {
		return Try{} // what was sent to a disk nobody else can go on with
	}
	long := func(t Try) bool {
		return t.Attempts > 0 && v.o.Now.Sub(t.Since) >= v.Config.Settings.RecoveryWaitInterval
	}
	if t := v.o.Tries[Key{ref, v.image.ID}]; t.Disk && long(t) {
		return t
	}
	if len(v.ready) > 0 {
		return Try{} // nobody goes to the source any more
	}
	var worst Try
	for name := range v.Config.Nodes[ref.Node].Disks {
		t := v.o.Tries[Key{schema.DiskRef{Node: ref.Node, Disk: name}, v.image.ID}]
		if t.Link && t.Kind.prepares() && long(t) && t.Until.After(worst.Until) {
			worst = t
		}
	}
	return worst
}

func (d Desired) disk(ref schema.DiskRef) (schema.Disk, bool) {
	declared, ok := d.Config.Nodes[ref.Node].Disks[ref.Disk]
	return declared, ok
}

func (d Desired) evicting(ref schema.DiskRef) bool {
	node := d.Config.Nodes[ref.Node]
	return node.EvictionRequested || node.Disks[ref.Disk].EvictionRequested
}

// refusal is why a disk gets no new copy.
type refusal struct {
	why string
	// meant says that it was asked for, so that nothing is wrong.
	meant bool
	// later: once there is a first copy, the disk takes one of it.
	later bool
}

// fault reports whether something is wrong with the disk.
func (r refusal) fault() bool { return !r.meant && !r.later }

// refuses says why a disk gets no new copy, so that the next in rank acts for it.
// A ready copy that it has counts all the same, and a file that only has to be
// verified takes no space.
func (v imageView) refuses(ref schema.DiskRef) refusal {
	key := Key{ref, v.image.ID}
	seen, known := v.o.Disks[ref]
	c := seen.Copies[v.image.ID]
	node, declared := v.Config.Nodes[ref.Node], v.Config.Nodes[ref.Node].Disks[ref.Disk]
	switch {
	case v.evicting(ref):
		return refusal{why: "its eviction is requested", meant: true}
	case !v.mine(ref) && !v.answers(ref):
		return v.refusesAway(ref, c)
	case !known:
		return refusal{why: "not looked at"}
	case seen.Problem != "":
		return refusal{why: seen.Problem}
	case c.State == disk.Ready, c.State == disk.Unknown:
		return refusal{}
	case !node.AllowScheduling:
		return refusal{why: "scheduling on the node is disabled", meant: true}
	case !declared.AllowScheduling:
		return refusal{why: "scheduling on the disk is disabled", meant: true}
	case c.State == disk.Failed && c.Using != "" && !v.repairable(key):
		return refusal{why: "the copy there failed and is in use"}
	case v.o.Running[key]:
		return refusal{}
	case c.Refuses != "" && !(c.Later && len(v.ready) > 0): // it has not heard of the first copy yet
		return refusal{why: c.Refuses, later: c.Later}
	case !v.mine(ref):
		return refusal{}
	}
	if why := v.unable(); why != "" {
		return refusal{why: why, later: true}
	}
	return v.refusesFor(ref, left(c, v.need()))
}

// refusesAway says it of a disk whose node is silent: for a while, a reboot for one,
// it keeps its place.
func (v imageView) refusesAway(ref schema.DiskRef, c Copy) refusal {
	peer, asked := v.o.Peers[ref.Node]
	_, known := v.o.Disks[ref]
	node, declared := v.Config.Nodes[ref.Node], v.Config.Nodes[ref.Node].Disks[ref.Disk]
	switch {
	case ref.Node == v.Node && len(v.o.Peers) > 0:
		return refusal{why: "this process does not look after it"} // and no other one is asked
	case !known && v.agrees(ref.Node):
		return refusal{why: fmt.Sprintf("node %s does not tell of it", ref.Node)}
	case asked && !peer.answers() && peer.Silent >= v.Config.Settings.RecoveryWaitInterval:
		return refusal{why: fmt.Sprintf("node %s does not answer: %s", ref.Node, peer.Problem)}
	case !known: // it may have a copy
		return refusal{}
	case c.State != disk.Ready && c.State != disk.Unknown && !(node.AllowScheduling && declared.AllowScheduling):
		return refusal{why: "scheduling there is disabled", meant: true}
	}
	return refusal{}
}

func (v imageView) refusesFor(ref schema.DiskRef, need int64) refusal {
	declared, _ := v.disk(ref)
	free := v.o.Disks[ref].Space.Free
	t := v.o.Tries[Key{ref, v.image.ID}]
	smaller := t.Kind == Upload || t.Kind.prepares() && len(v.ready) > 0 // the next file, or the data alone
	if !smaller {
		need = max(need, t.Space)
	}
	need = max(need, 1)
	if need <= free-declared.StorageReserved {
		return refusal{}
	}
	why := fmt.Sprintf("%s: %s are free and %s reserved", noSpace, bytesText(free), bytesText(declared.StorageReserved))
	if need > 1 {
		why += ", " + bytesText(need) + " are needed"
	}
	return refusal{why: why}
}

const noSpace = "not enough space"
