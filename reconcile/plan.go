package reconcile

import (
	"fmt"
	"iter"
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
		return d.newPlan([]Action{})
	}
	p := d.newPlan(d.scene(o).plan(maps.Values(d.Config.Images)))
	p.Suspended = d.suspensions(o.Now)
	return p
}

// plan gives the actions for these images, and for what is not declared.
func (s *scene) plan(images iter.Seq[schema.Image]) []Action {
	actions := []Action{}
	for image := range images {
		actions = append(actions, s.look(image).plan()...)
	}
	for name := range s.Held {
		if why := s.holds(name); why != "" {
			actions = append(actions, newAction(Blocked, Key{schema.DiskRef{Node: s.Node}, disk.ID{Name: name}}, why, 0))
		}
	}
	actions = append(actions, s.planVanished()...)
	actions = append(actions, s.scrub(actions)...)
	return spareSources(actions)
}

// spareSources keeps the copies that others are to be made from.
func spareSources(actions []Action) []Action {
	readBy := map[Key]string{}
	for _, a := range actions {
		if reader := a.Key().String(); a.from != (Key{}) && (readBy[a.from] == "" || reader < readBy[a.from]) {
			readBy[a.from] = reader
		}
	}
	for i, a := range actions {
		reader := readBy[a.Key()]
		if reader != "" && (a.Kind == Cleanup || a.Kind == Evict) {
			actions[i] = newAction(Wait, a.Key(), fmt.Sprintf("%s, but is copied to %s first", a.Reason, reader), 0).wouldBe(a.Kind, false)
		}
	}
	return actions
}

// plan gives the actions for one image on this node's disks.
func (v imageView) plan() []Action {
	return v.hold(v.suspension(v.image, v.o.Now), v.unheld())
}

// unheld is what would be planned without a suspension.
func (v imageView) unheld() []Action {
	settling := v.settle()
	if conflict := v.conflict(); conflict != "" {
		return append(slices.Collect(maps.Values(settling)), v.blocked(schema.DiskRef{}, conflict))
	}
	actions := v.planSurplus(settling)
	for _, ref := range v.places.want {
		if _, first := settling[ref]; first || !v.mine(ref) {
			continue
		}
		if a, needed := v.obtain(ref, settling); needed {
			actions = append(actions, a.wouldBe(v.way(ref), v.waitsForFile()))
		}
	}
	if v.places.short > 0 || v.places.ranked.len() == 0 {
		actions = append(actions, v.shortage())
	}
	if a, due := v.backup(settling); due {
		actions = append(actions, a)
	}
	actions = append(actions, v.askedInVain()...)
	for _, ref := range v.image.Disks {
		if a, refused := v.refusedByName(ref); refused {
			actions = append(actions, a)
		}
	}
	return append(actions, slices.Collect(maps.Values(settling))...)
}

// askedInVain tells that what is wanted is not cleaned up, even if somebody asks.
func (v imageView) askedInVain() []Action {
	var actions []Action
	for _, ref := range v.places.want {
		if key := (Key{ref, v.image.ID}); v.mine(ref) && v.Cleanup[key] && v.copy(key).State == disk.Ready {
			actions = append(actions, v.keep(key, "its clean-up was asked for, but the image is wanted on this disk"))
		}
	}
	return actions
}

// settle says, for each disk where it is so, what has to be found out or decided
// about the file that lies there before anything else is done with it.
func (v imageView) settle() map[schema.DiskRef]Action {
	settling := map[schema.DiskRef]Action{}
	for _, key := range v.named[v.image.ID.Name] {
		if key.ID != v.image.ID {
			continue
		}
		ref, c := key.Disk, v.copy(key)
		switch {
		case c.State == disk.Unknown && !c.Owned:
			settling[ref] = v.try(Adopt, ref, "a file is there: "+c.Message, c.Size)
		case c.State == disk.Unknown:
			settling[ref] = v.try(Verify, ref, c.Message, c.Size)
		case c.State == disk.Ready && v.Verify[key]:
			settling[ref] = v.try(Verify, ref, "asked for", c.Size)
		case c.State == disk.Ready && v.suspect[key]:
			settling[ref] = v.try(Verify, ref, suspected, c.Size)
		case c.State == disk.Failed && v.repairable(key):
			settling[ref] = v.repair(key)
		case c.State == disk.Failed && c.Using != "":
			settling[ref] = v.blocked(ref, fmt.Sprintf("the copy failed (%s) and cannot be replaced: %s", c.Message, c.Using))
		case v.wrong[key] == needsSHA256:
			settling[ref] = v.try(Verify, ref, needsSHA256, c.Size)
		case v.wrong[key] != "":
			settling[ref] = v.blocked(ref, v.wrong[key])
		case c.State == disk.Ready && !c.HasCfg:
			settling[ref] = v.try(Adopt, ref, "backing.cfg is missing or is not about the file", 0)
		case c.State == disk.Ready && c.ManifestDigest.IsZero():
			settling[ref] = v.try(Verify, ref, "its chunk manifest is missing", c.Size)
		}
	}
	return settling
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
			if of := v.image.Source.Clone; of != nil && of.Encryption == schema.Encrypt { // which takes no checksum
				return fmt.Sprintf("copies differ, those of %s and %s, as each was encrypted by itself: to have it encrypted anew, declare another uuid", v.ready[0].Disk, key.Disk)
			}
			return fmt.Sprintf("copies differ: to keep that of %s, declare checksum: %q; to keep that of %s, declare checksum: %q",
				v.ready[0].Disk, first.SHA512, key.Disk, c.SHA512)
		}
	}
	return ""
}

// shortage tells that fewer disks can take a copy than are wanted. As long as
// nothing is wrong with a disk it does not keep the plan from being empty: there
// is nothing that would be done.
func (v imageView) shortage() Action {
	reason := fmt.Sprintf("no disk can take %d of %d copies", v.places.short, v.places.copies)
	if v.places.ranked.len() == 0 {
		reason = v.noDisk()
	}
	by, wrong := map[string][]string{}, len(v.places.want) == 0 || v.places.ranked.len() == 0
	for ref, r := range v.places.refused {
		if v.matches(ref) {
			by[r.why] = append(by[r.why], ref.String())
			wrong = wrong || r.fault()
		}
	}
	var why []string
	for reason, disks := range by {
		slices.Sort(disks)
		why = append(why, fmt.Sprintf("%s: %s", listed(disks), reason))
	}
	if len(why) > 0 {
		slices.Sort(why)
		reason += " (" + strings.Join(why, "; ") + ")"
	}
	a := v.blocked(schema.DiskRef{}, reason)
	if !wrong {
		a.Kind = Wait
	}
	return a
}

// noDisk says why no disk is ranked.
func (v imageView) noDisk() string {
	var evicted []string
	for name, node := range v.Config.Nodes {
		for d, declared := range node.Disks { // none of which has a rank, so what matches is evicted
			if hasAll(node.Tags, v.image.NodeSelector) && hasAll(declared.Tags, v.image.DiskSelector) {
				evicted = append(evicted, schema.DiskRef{Node: name, Disk: d}.String())
			}
		}
	}
	if len(evicted) == 0 {
		return "no disk matches the selectors"
	}
	slices.Sort(evicted)
	return fmt.Sprintf("every disk that matches is to be evicted (%s)", listed(evicted))
}

// listed names a few of sorted words.
func listed(words []string) string {
	const most = 5
	if more := len(words) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), more)
	}
	return strings.Join(words, ", ")
}

// refusedByName tells of a disk of this node that the image names and that gets
// no copy.
func (v imageView) refusedByName(ref schema.DiskRef) (a Action, refused bool) {
	r, refused := v.places.refused[ref]
	told := v.places.short > 0 && v.matches(ref) || v.copy(Key{ref, v.image.ID}).Owned && r.meant
	if !refused || told || !v.mine(ref) {
		return Action{}, false
	}
	a = v.blocked(ref, "the image names this disk, but "+r.why)
	if r.meant {
		a.Kind = Wait
	}
	return a, true
}

func newAction(kind Kind, key Key, reason string, bytes int64) Action {
	return Action{Kind: kind, Image: key.ID.Name, UUID: key.ID.UUID, Node: key.Disk.Node, Disk: key.Disk.Disk, Reason: reason, Bytes: bytes}
}

func (v imageView) blocked(ref schema.DiskRef, reason string) Action {
	if ref.Node == "" {
		ref.Node = v.Node
	}
	return newAction(Blocked, Key{ref, v.image.ID}, reason, 0)
}

func (v imageView) wait(ref schema.DiskRef, reason string) Action {
	return newAction(Wait, Key{ref, v.image.ID}, reason, 0)
}

// try is the action, or what it has to wait for because it failed before.
func (v imageView) try(kind Kind, ref schema.DiskRef, reason string, bytes int64) Action {
	key := Key{ref, v.image.ID}
	t := v.o.Tries[key]
	turn := (kind == Sync && t.Kind == Repair || kind == Repair && t.Kind == Sync) && t.Until.After(v.o.Now)
	if turn || t.puts(kind, v.o.Now) {
		return v.putOff(ref, t)
	}
	return newAction(kind, key, reason, bytes)
}

func (v imageView) putOff(ref schema.DiskRef, t Try) Action {
	if t.Final {
		return v.blocked(ref, t.Message)
	}
	a := v.wait(ref, t.Message)
	a.Until = t.Until
	return a
}

func bytesText(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
