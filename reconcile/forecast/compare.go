package forecast

import (
	"maps"
	"reflect"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Change is what became of something that is declared.
type Change string

// The changes from one configuration to another.
const (
	Added   Change = "added"
	Removed Change = "removed"
	Changed Change = "changed"
)

// Difference is what one configuration says otherwise than another, whatever lies on
// disks. It is a stable interface: fields are added, and none changes its meaning.
type Difference struct {
	Images   []ImageDifference `json:"images"` // sorted
	Nodes    []NodeDifference  `json:"nodes"`  // sorted; those on which anything changes
	Settings bool              `json:"settings"`
}

// ImageDifference is an image that is declared otherwise, or elsewhere.
type ImageDifference struct {
	Image  string `json:"image"`
	Change Change `json:"change,omitempty"` // "": its disks alone are other ones, as nodes are
	// Generation: it has other bytes, so that all copies are made anew.
	Generation bool   `json:"generation,omitempty"`
	UUID       string `json:"uuid,omitempty"`    // of what is declared now
	OldUUID    string `json:"oldUUID,omitempty"` // of what was
	// Before and After are the disks that should have a copy, as NODE/DISK, best first, if all
	// disks can take one.
	Before  []string `json:"before"`
	After   []string `json:"after"`
	Added   []string `json:"comes"` // disks that should have a copy now and should not before
	Removed []string `json:"goes"`

	added, removed []schema.DiskRef
}

// NodeDifference is a node that is declared otherwise, or should have other copies.
type NodeDifference struct {
	Node    string   `json:"node"`
	Change  Change   `json:"change,omitempty"`
	Added   []string `json:"comes"` // images, sorted
	Removed []string `json:"goes"`
}

// Empty reports whether there is no difference.
func (d Difference) Empty() bool { return len(d.Images)+len(d.Nodes) == 0 && !d.Settings }

// Compare says what after says otherwise than before.
func Compare(before, after schema.Config) Difference {
	d := Difference{Images: []ImageDifference{}, Nodes: []NodeDifference{}, Settings: !reflect.DeepEqual(before.Settings, after.Settings)}
	nodes := map[string]*NodeDifference{}
	for _, name := range sortedKeys(before.Nodes, after.Nodes) {
		a, was := before.Nodes[name]
		b, is := after.Nodes[name]
		a.Pos, b.Pos = document.Position{}, document.Position{}
		nodes[name] = &NodeDifference{Node: name, Change: changed(was, is, reflect.DeepEqual(a, b)), Added: []string{}, Removed: []string{}}
	}
	was, is := plan.NewRankCache(before.Nodes, 0), plan.NewRankCache(after.Nodes, 0)
	for _, name := range sortedKeys(before.Images, after.Images) {
		one, differs := compareImage(name, before.Images, after.Images, was, is)
		if !differs {
			continue
		}
		d.Images = append(d.Images, one)
		for _, ref := range one.added {
			nodes[ref.Node].Added = append(nodes[ref.Node].Added, name)
		}
		for _, ref := range one.removed {
			nodes[ref.Node].Removed = append(nodes[ref.Node].Removed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if n := nodes[name]; n.Change != "" || len(n.Added)+len(n.Removed) > 0 {
			d.Nodes = append(d.Nodes, *n)
		}
	}
	return d
}

// sortedKeys has the keys of both, sorted.
func sortedKeys[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

func changed(was, is, equal bool) Change {
	switch {
	case !was:
		return Added
	case !is:
		return Removed
	case !equal:
		return Changed
	}
	return ""
}

func compareImage(name string, before, after map[string]schema.Image, was, is *plan.RankCache) (d ImageDifference, differs bool) {
	a, old := before[name]
	b, now := after[name]
	a.Pos, b.Pos = document.Position{}, document.Position{}
	a.Declaration, b.Declaration = disk.Declaration{}, disk.Declaration{}
	d = ImageDifference{Image: name, Change: changed(old, now, reflect.DeepEqual(a, b)), UUID: b.ID.UUID, OldUUID: a.ID.UUID}
	d.Generation = old && now && a.ID != b.ID
	var had, has []schema.DiskRef
	if old {
		had = was.DesiredDisks(a)
	}
	if now {
		has = is.DesiredDisks(b)
	}
	d.Before, d.After = refTexts(had), refTexts(has)
	d.added = plan.Subtract(has, had)
	d.removed = plan.Subtract(had, has)
	d.Added, d.Removed = refTexts(d.added), refTexts(d.removed)
	return d, d.Change != "" || len(d.added)+len(d.removed) > 0
}

func refTexts(refs []schema.DiskRef) []string {
	texts := make([]string, len(refs))
	for i, ref := range refs {
		texts[i] = ref.String()
	}
	return texts
}

// Without is r without what base tells of in the same words.
func (r Risk) Without(base Risk) Risk {
	r.LosesAll = slices.DeleteFunc(slices.Clone(r.LosesAll), func(s string) bool { return slices.Contains(base.LosesAll, s) })
	r.BelowReserve = slices.DeleteFunc(slices.Clone(r.BelowReserve), func(s string) bool { return slices.Contains(base.BelowReserve, s) })
	r.BelowCopies = slices.DeleteFunc(slices.Clone(r.BelowCopies), func(s Shortfall) bool { return slices.Contains(base.BelowCopies, s) })
	return r
}
