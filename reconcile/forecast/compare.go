package forecast

import (
	"maps"
	"reflect"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Change is how a declaration differs between two configurations.
type Change string

// The changes from one configuration to another.
const (
	Unchanged Change = "" // JSON omits it
	Added     Change = "added"
	Removed   Change = "removed"
	Changed   Change = "changed"
)

// Difference is how two configurations differ, independently of the observed state. Its JSON is a
// stable interface: fields may be added, and no field changes its meaning.
type Difference struct {
	Images   []ImageDifference `json:"images"` // sorted
	Nodes    []NodeDifference  `json:"nodes"`  // sorted; nodes with any change
	Settings bool              `json:"settings"`
}

// ImageDifference is an image whose declaration or desired disks differ.
type ImageDifference struct {
	Image  string `json:"image"`
	Change Change `json:"change,omitempty"` // Unchanged means that only its desired disks differ
	// Generation reports whether the image has a new uuid. Then all copies are created again (I5).
	Generation bool   `json:"generation,omitempty"`
	UUID       string `json:"uuid,omitempty"`    // as declared after
	OldUUID    string `json:"oldUUID,omitempty"` // as declared before
	// Before and After are the desired disks, best first. They assume that every disk can take
	// a copy.
	Before  []ident.DiskRef `json:"before"`
	After   []ident.DiskRef `json:"after"`
	Added   []ident.DiskRef `json:"added"`   // in After and not in Before
	Removed []ident.DiskRef `json:"removed"` // in Before and not in After
}

// NodeDifference is a node whose declaration or desired copies differ.
type NodeDifference struct {
	Node    string   `json:"node"`
	Change  Change   `json:"change,omitempty"`
	Added   []string `json:"added"` // images that the node must have after and not before, sorted
	Removed []string `json:"removed"`
}

// Empty reports whether there is no difference.
func (d Difference) Empty() bool { return len(d.Images)+len(d.Nodes) == 0 && !d.Settings }

// Compare returns how after differs from before. Positions in files do not count.
func Compare(before, after schema.Config) Difference {
	d := Difference{Images: []ImageDifference{}, Nodes: []NodeDifference{}, Settings: !reflect.DeepEqual(before.Settings, after.Settings)}
	nodes := map[string]*NodeDifference{}
	for _, name := range sortedKeys(before.Nodes, after.Nodes) {
		a, was := before.Nodes[name]
		b, is := after.Nodes[name]
		a.Pos, b.Pos = document.Position{}, document.Position{}
		nodes[name] = &NodeDifference{Node: name, Change: changed(was, is, reflect.DeepEqual(a, b)), Added: []string{}, Removed: []string{}}
	}
	was, is := plan.NewDiskList(before.Nodes), plan.NewDiskList(after.Nodes)
	for _, name := range sortedKeys(before.Images, after.Images) {
		one, differs := compareImage(name, before.Images, after.Images, was, is)
		if !differs {
			continue
		}
		d.Images = append(d.Images, one)
		for _, ref := range one.Added {
			nodes[ref.Node].Added = append(nodes[ref.Node].Added, name)
		}
		for _, ref := range one.Removed {
			nodes[ref.Node].Removed = append(nodes[ref.Node].Removed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if n := nodes[name]; n.Change != Unchanged || len(n.Added)+len(n.Removed) > 0 {
			d.Nodes = append(d.Nodes, *n)
		}
	}
	return d
}

// sortedKeys returns the keys of both maps, sorted.
func sortedKeys[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}

// changed returns the change of a declaration. The arguments report whether it exists before the
// change, exists after the change, and is equal in both.
func changed(was, is, equal bool) Change {
	switch {
	case !was:
		return Added
	case !is:
		return Removed
	case !equal:
		return Changed
	}
	return Unchanged
}

// compareImage returns how the image differs. If it does not differ, differs is false. The last two
// arguments are the disks before and after the change.
func compareImage(name string, before, after map[string]schema.Image, was, is plan.DiskList) (d ImageDifference, differs bool) {
	a, old := before[name]
	b, now := after[name]
	a.Pos, b.Pos = document.Position{}, document.Position{}
	a.Declaration, b.Declaration = model.Declaration{}, model.Declaration{}
	d = ImageDifference{Image: name, Change: changed(old, now, reflect.DeepEqual(a, b)), UUID: b.ID.UUID, OldUUID: a.ID.UUID}
	d.Generation = old && now && a.ID != b.ID
	d.Before, d.After = []ident.DiskRef{}, []ident.DiskRef{} // [] in JSON
	if old {
		d.Before = append(d.Before, was.Desired(a)...)
	}
	if now {
		d.After = append(d.After, is.Desired(b)...)
	}
	d.Added = append([]ident.DiskRef{}, plan.Subtract(d.After, d.Before)...)
	d.Removed = append([]ident.DiskRef{}, plan.Subtract(d.Before, d.After)...)
	return d, d.Change != Unchanged || len(d.Added)+len(d.Removed) > 0
}
