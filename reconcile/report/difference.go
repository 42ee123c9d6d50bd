package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Difference is the difference of two configurations, with the fields that differ. Its JSON
// is a stable interface.
type Difference struct {
	forecast.Difference
	Fields []fieldDifference `json:"fields"` // of the settings, and of the nodes and images in both configurations, sorted
	// Unrelated is the number of planned actions that the old configuration would also cause. It is
	// 0 without a saved state.
	Unrelated int `json:"unrelated"`
}

// fieldDifference is one field with different values, formatted as text. A value is empty if
// the field has none.
type fieldDifference struct {
	Field string `json:"field"` // images.parrot.minNumberOfCopies
	Old   string `json:"old"`
	New   string `json:"new"`
}

// NewDifference compares two configurations.
func NewDifference(old, new schema.Config) Difference {
	d := Difference{Difference: forecast.Compare(old, new), Fields: []fieldDifference{}}
	changed := map[string]bool{}
	for _, image := range d.Images {
		changed["images."+image.Image+"."] = image.Change == forecast.Changed
	}
	for _, node := range d.Nodes {
		changed["nodes."+node.Node+"."] = node.Change == forecast.Changed
	}
	before, after := fieldsOf(old, changed), fieldsOf(new, changed)
	fields := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(fields)
	for _, field := range slices.Compact(fields) {
		if before[field] != after[field] {
			d.Fields = append(d.Fields, fieldDifference{field, before[field], after[field]})
		}
	}
	return d
}

// fieldsOf returns the values of the settings and of the changed nodes and images. The key is
// the path that the field has in the output of validate -o json.
func fieldsOf(c schema.Config, changed map[string]bool) map[string]string {
	fields := map[string]string{}
	add := func(path string, view any) {
		b, err := json.Marshal(view)
		var tree any
		if err == nil {
			err = json.Unmarshal(b, &tree)
		}
		if err != nil {
			panic("encode a configuration: " + err.Error()) // it was decoded from text
		}
		flatten(fields, path, tree)
	}
	add("settings", redacted{c.Settings})
	for name, image := range c.Images {
		if changed["images."+name+"."] {
			add("images."+name, redacted{image})
		}
	}
	for name, node := range c.Nodes {
		if changed["nodes."+name+"."] {
			add("nodes."+name, redacted{node})
		}
	}
	return fields
}

func flatten(fields map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, field := range v {
			flatten(fields, path+"."+name, field)
		}
		if len(v) == 0 {
			fields[path] = "{}"
		}
	case []any:
		words := make([]string, len(v))
		for i, element := range v {
			words[i] = fmt.Sprint(element)
		}
		fields[path] = strings.Join(words, ", ")
	case float64:
		fields[path] = fmt.Sprintf("%.0f", v) // the schema has whole numbers only
	default:
		fields[path] = fmt.Sprint(v)
	}
}

// WriteDifference writes a difference without a plan.
func WriteDifference(w io.Writer, d Difference, format Format) error {
	return write(w, format, map[string]Difference{"diff": d}, d.text, d.markdown)
}

// summary returns one line that counts the changes.
func (d Difference) summary() string {
	images, nodes := map[forecast.Change]int{}, map[forecast.Change]int{}
	generations, added, removed := 0, 0, 0
	for _, image := range d.Images {
		images[image.Change]++
		added += len(image.Added)
		removed += len(image.Removed)
		if image.Generation { // all copies of the old generation are replaced
			generations++
			added += len(image.After) - len(image.Added)
			removed += len(image.Before) - len(image.Removed)
		}
	}
	for _, node := range d.Nodes {
		nodes[node.Change]++
	}
	var parts []string
	for _, change := range []forecast.Change{forecast.Removed, forecast.Added, forecast.Changed} {
		if n := images[change]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", Count(n, "image"), change))
		}
		if change == forecast.Changed && generations > 0 {
			parts[len(parts)-1] += fmt.Sprintf(" (%s)", Count(generations, "new generation"))
		}
	}
	for _, change := range []forecast.Change{forecast.Removed, forecast.Added, forecast.Changed} {
		if n := nodes[change]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %s", Count(n, "node"), change))
		}
	}
	if d.Settings {
		parts = append(parts, "settings changed")
	}
	if added+removed > 0 {
		parts = append(parts, fmt.Sprintf("%s to create, %d to delete", Count(added, "copy"), removed))
	}
	if len(parts) == 0 {
		return "The configurations are equal."
	}
	return strings.Join(parts, "; ") + "."
}

var (
	fieldHeader = []string{"field", "old", "new"}
	imageHeader = []string{"image", "", "disks before", "disks after"}
	nodeHeader  = []string{"node", "", "images to add", "images to remove"}
)

func (d Difference) fieldRows() (rows [][]string) {
	for _, f := range d.Fields {
		rows = append(rows, []string{f.Field, f.Old, f.New})
	}
	return rows
}

func (d Difference) imageRows() (rows [][]string) {
	for _, image := range d.Images {
		change := string(image.Change)
		switch {
		case image.Generation:
			change = fmt.Sprintf("new generation %s, was %s", image.UUID, image.OldUUID)
		case image.Change == forecast.Unchanged:
			change = "moved"
		case image.Change == forecast.Changed && len(image.Added)+len(image.Removed) == 0:
			change = "changed, same disks"
		}
		rows = append(rows, []string{image.Image, change, joinNames(image.Before), joinNames(image.After)})
	}
	return rows
}

func (d Difference) nodeRows() (rows [][]string) {
	for _, node := range d.Nodes {
		rows = append(rows, []string{node.Node, string(node.Change), joinNames(node.Added), joinNames(node.Removed)})
	}
	return rows
}

// tables adds the tables of a difference to the comment b. It keeps reserve bytes of the comment
// for what follows.
func (d Difference) tables(b *comment, reserve int) {
	b.table(fmt.Sprintf("Changed fields (%d)", len(d.Fields)), fieldHeader, d.fieldRows(), reserve+5_000)
	b.table(fmt.Sprintf("Changed images (%d)", len(d.Images)), imageHeader, d.imageRows(), reserve+2_500)
	b.table(fmt.Sprintf("Changed nodes (%d)", len(d.Nodes)), nodeHeader, d.nodeRows(), reserve)
}

// withoutState explains what a difference without a saved state does not include.
const withoutState = "This comparison uses only the configurations, and assumes that every disk accepts every copy. With `--state` it shows the existing copies and the bytes to transfer."

func (d Difference) markdown() *comment {
	b := &comment{}
	b.linef("### %v", d.summary())
	b.linef(withoutState)
	d.tables(b, 2_000)
	return b
}

func (d Difference) text() *lines {
	b := &lines{}
	b.table("Changed fields:", fieldHeader, d.fieldRows())
	b.table("Changed images:", imageHeader, d.imageRows())
	b.table("Changed nodes:", nodeHeader, d.nodeRows())
	b.linef("%s", d.summary())
	return b
}
