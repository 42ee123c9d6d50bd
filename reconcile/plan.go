package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Plan says what has to happen on the disks of d.Node. It depends on d and o
// alone and reads no clock. Two plans from equal values are equal.
func (d Desired) Plan(o Observed) Plan {
	if d.May == schema.ObserveOnly {
		return newPlan([]Action{})
	}
	actions := []Action{}
	for _, name := range slices.Sorted(maps.Keys(d.Config.Images)) {
		p := d.look(o, d.Config.Images[name])
		actions = append(actions, p.plan()...)
	}
	for name := range d.Held {
		if why := d.holds(name); why != "" {
			actions = append(actions, newAction(Blocked, Key{schema.DiskRef{Node: d.Node}, disk.ID{Name: name}}, why, 0))
		}
	}
	return newPlan(append(actions, d.planVanished(o)...))
}

// imageView is one declared image as it is on all disks.
type imageView struct {
	Desired
	o      Observed
	image  schema.Image
	places placement
	// ready are the copies of the wanted generation that have the declared
	// digest, or all have the same one; in order of rank, others after them.
	ready []Key
	// other says why a copy that is ready is not one of them.
	other map[Key]string
}

func (d Desired) look(o Observed, image schema.Image) imageView {
	v := imageView{Desired: d, o: o, image: image, other: map[Key]string{}}
	var need int64
	for ref, seen := range o.Disks {
		c, isReady := seen.ready(image.ID)
		if !isReady {
			continue
		}
		key := Key{ref, image.ID}
		need = max(need, c.RealSize)
		if why := notDeclared(image, c); why != "" {
			v.other[key] = why
			continue
		}
		v.ready = append(v.ready, key)
	}
	v.places = d.place(o, image, need)
	slices.SortFunc(v.ready, func(a, b Key) int { return v.compareRank(a.Disk, b.Disk) })
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
	return fmt.Sprintf("the file there has checksum %s, declared is %s: declare that checksum or another uuid",
		c.SHA512, image.Checksum)
}

const needsSHA256 = "its SHA-256 is not known yet"

func (v imageView) compareRank(a, b schema.DiskRef) int {
	rank := func(ref schema.DiskRef) int {
		if i := slices.Index(v.places.ranked, ref); i >= 0 {
			return i
		}
		return len(v.places.ranked)
	}
	if ra, rb := rank(a), rank(b); ra != rb {
		return ra - rb
	}
	return compareRefs(a, b)
}

func compareRefs(a, b schema.DiskRef) int { return strings.Compare(a.String(), b.String()) }

// plan gives the actions for one image on this node's disks.
func (v imageView) plan() []Action {
	actions := v.settle()
	if conflict := v.conflict(); conflict != "" {
		return append(actions, v.blocked(schema.DiskRef{}, conflict))
	}
	settling := map[schema.DiskRef]bool{}
	for _, a := range actions {
		settling[a.Key().Disk] = true
	}
	for _, ref := range v.places.want {
		if ref.Node != v.Node || settling[ref] {
			continue
		}
		if a, needed := v.obtain(ref); needed {
			actions = append(actions, a)
		}
	}
	if v.places.short > 0 {
		actions = append(actions, v.shortage())
	}
	return append(actions, v.planSurplus(v.image.ID)...)
}

// settle finds out about files of the wanted generation that nothing vouches for,
// wherever they lie, before anything is fetched.
func (v imageView) settle() []Action {
	var actions []Action
	for _, ref := range v.ownDisks() {
		c, there := v.o.Disks[ref].Copies[v.image.ID]
		key := Key{ref, v.image.ID}
		switch {
		case !there:
		case c.State == disk.Unknown && !c.Owned:
			actions = append(actions, v.try(Adopt, ref, "a file is there: "+c.Message, c.Size))
		case c.State == disk.Unknown:
			actions = append(actions, v.try(Verify, ref, c.Message, c.Size))
		case v.other[key] == needsSHA256:
			actions = append(actions, v.try(Verify, ref, needsSHA256, c.Size))
		case v.other[key] != "":
			actions = append(actions, v.blocked(ref, v.other[key]))
		case c.State == disk.Ready && !c.HasCfg:
			actions = append(actions, v.try(Adopt, ref, "backing.cfg is missing or is not about the file", 0))
		}
	}
	return actions
}

// conflict says when two ready copies differ, so that nobody can tell which of
// them is the image.
func (v imageView) conflict() string {
	if !v.image.Checksum.IsZero() || len(v.ready) < 2 {
		return ""
	}
	first := v.copy(v.ready[0])
	for _, key := range v.ready[1:] {
		if c := v.copy(key); c.SHA512 != first.SHA512 {
			return fmt.Sprintf("copies differ: %s has checksum %s and %s has %s: declare the right one as \"checksum\"",
				v.ready[0].Disk, first.SHA512, key.Disk, c.SHA512)
		}
	}
	return ""
}

// obtain says how the wanted disk ref gets its copy. There is nothing to do when
// it has one.
func (v imageView) obtain(ref schema.DiskRef) (a Action, needed bool) {
	c := v.o.Disks[ref].Copies[v.image.ID]
	if c.State == disk.Ready {
		return Action{}, false
	}
	if c.State == disk.Failed && c.Using != "" {
		return v.blocked(ref, fmt.Sprintf("the copy failed (%s) and cannot be replaced: %s", c.Message, c.Using)), true
	}
	reason := "no copy on this disk"
	switch {
	case c.State == disk.Failed:
		reason = "the copy failed: " + c.Message
	case c.PartBytes > 0:
		reason = fmt.Sprintf("resumes at %s", bytesText(c.PartBytes))
	}
	if from, ok := v.source(ref); ok {
		return v.sync(ref, from, reason), true
	}
	return v.prepare(ref, reason), true
}

// source finds a ready copy of the same bytes on a disk of this node: of this
// image, or of any other image if the checksum is declared.
func (v imageView) source(ref schema.DiskRef) (Key, bool) {
	for _, key := range v.ready {
		if key.Disk.Node == v.Node {
			return key, true
		}
	}
	if v.image.Checksum.IsZero() {
		return Key{}, false
	}
	for _, from := range v.ownDisks() {
		copies := v.o.Disks[from].Copies
		for _, id := range slices.SortedFunc(maps.Keys(copies), compareIDs) {
			if copies[id].Has(v.image.Checksum) {
				return Key{from, id}, true
			}
		}
	}
	return Key{}, false
}

func compareIDs(a, b disk.ID) int { return strings.Compare(a.String(), b.String()) }

func (v imageView) sync(ref schema.DiskRef, from Key, reason string) Action {
	if len(v.ready) > 0 && v.Config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		return v.blocked(ref, "concurrentReplenishPerNodeLimit is 0: only first copies are made")
	}
	c := v.copy(from)
	a := v.try(Sync, ref, reason, c.Size-v.o.Disks[ref].Copies[v.image.ID].PartBytes)
	if a.Kind == Sync {
		a.From, a.from = from.String(), from
	}
	return a
}

// prepare is how the first copy comes to be. It is the task of the first disk in
// rank; the others wait for it.
func (v imageView) prepare(ref schema.DiskRef, reason string) Action {
	if first := v.places.want[0]; first != ref {
		if first.Node != v.Node {
			return v.blocked(ref, fmt.Sprintf("the first copy is for %s to make, and copies from other nodes are not supported yet", first))
		}
		return v.wait(ref, fmt.Sprintf("the first copy is made on %s", first))
	}
	if kind := v.image.Source.Kind(); kind != schema.KindDownload {
		return v.blocked(ref, fmt.Sprintf("source %s is not supported yet", kind))
	}
	bytes := int64(UnknownBytes)
	if c := v.o.Disks[ref].Copies[v.image.ID]; c.PartTotal > 0 {
		bytes = c.PartTotal - c.PartBytes
	}
	return v.try(Download, ref, reason, bytes)
}

// preparer is the first wanted disk whose copy can be made or replaced.
func (v imageView) preparer() schema.DiskRef {
	for _, ref := range v.places.want {
		c := v.o.Disks[ref].Copies[v.image.ID]
		if c.State != disk.Failed || c.Using == "" {
			return ref
		}
	}
	return v.places.want[0]
}

// shortage tells that fewer disks can take a copy than are wanted. It does not
// keep the plan from being empty: there is nothing that would be done.
func (v imageView) shortage() Action {
	reason := fmt.Sprintf("%d more copies are wanted than disks can take", v.places.short)
	if len(v.places.ranked) == 0 {
		reason = "no disk matches the selectors"
	}
	var why []string
	for _, ref := range slices.SortedFunc(maps.Keys(v.places.cannot), compareRefs) {
		why = append(why, fmt.Sprintf("%s: %s", ref, v.places.cannot[ref]))
	}
	if len(why) > 0 {
		reason += " (" + strings.Join(why, "; ") + ")"
	}
	a := v.blocked(schema.DiskRef{}, reason)
	if len(v.places.want) > 0 {
		a.Kind = Wait
	}
	return a
}

// ownDisks are the disks of this node that can be used, sorted.
func (d Desired) ownDisks(o Observed) []schema.DiskRef {
	var refs []schema.DiskRef
	for ref, seen := range o.Disks {
		if ref.Node == d.Node && seen.Problem == "" {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, compareRefs)
	return refs
}

func (v imageView) ownDisks() []schema.DiskRef { return v.Desired.ownDisks(v.o) }

func (v imageView) copy(key Key) Copy { return v.o.Disks[key.Disk].Copies[key.ID] }

func (v imageView) action(kind Kind, ref schema.DiskRef, reason string, bytes int64) Action {
	return newAction(kind, Key{ref, v.image.ID}, reason, bytes)
}

func newAction(kind Kind, key Key, reason string, bytes int64) Action {
	return Action{Kind: kind, Image: key.ID.Name, UUID: key.ID.UUID, Node: key.Disk.Node, Disk: key.Disk.Disk, Reason: reason, Bytes: bytes}
}

func (v imageView) blocked(ref schema.DiskRef, reason string) Action {
	if ref.Node == "" {
		ref.Node = v.Node
	}
	return v.action(Blocked, ref, reason, 0)
}

func (v imageView) wait(ref schema.DiskRef, reason string) Action {
	return v.action(Wait, ref, reason, 0)
}

// try is the action, or what it has to wait for because it failed before.
func (v imageView) try(kind Kind, ref schema.DiskRef, reason string, bytes int64) Action {
	t := v.o.Tries[Key{ref, v.image.ID}]
	switch {
	case t.Final:
		return v.blocked(ref, t.Message)
	case t.Space == 0 && t.Until.After(v.o.Now):
		a := v.wait(ref, t.Message)
		a.Until = t.Until
		return a
	}
	return v.action(kind, ref, reason, bytes)
}

func bytesText(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
