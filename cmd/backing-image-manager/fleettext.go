package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// riskText says in one line what somebody who approves a plan should know, the worst
// first.
func riskText(r reconcile.Risk) string {
	var parts []string
	say := func(n int, format string, args ...any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	var short []string
	for _, s := range r.BelowCopies {
		short = append(short, fmt.Sprintf("%s (%d of %d)", s.Image, s.After, s.Wanted))
	}
	amount := func(a reconcile.Amount) string { return fmt.Sprintf("%s (%s)", copies(a.Copies), size(a.Bytes)) }
	say(len(r.LosesAll), "loses all copies: %s", few(r.LosesAll))
	say(r.Removes.Copies, "deletes %s", amount(r.Removes))
	say(r.Evicts.Copies, "evicts %s", amount(r.Evicts))
	say(r.Later.Copies, "deletes %s later", amount(r.Later))
	say(len(r.BelowReserve), "below the reserve: %s", few(r.BelowReserve))
	say(len(short), "fewer copies than declared: %s", few(short))
	say(r.Blocked, "%d blocked", r.Blocked)
	say(r.Held, "%d held", r.Held)
	if len(parts) == 0 {
		return "Deletes nothing."
	}
	parts[0] = strings.ToUpper(parts[0][:1]) + parts[0][1:]
	return strings.Join(parts, "; ") + "."
}

func copies(n int) string {
	if n == 1 {
		return "1 copy"
	}
	return fmt.Sprintf("%d copies", n)
}

// few names some of many.
func few(words []string) string {
	const most = 3
	if more := len(words) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), more)
	}
	return strings.Join(words, ", ")
}

// trafficText is one line about what is moved.
func trafficText(t reconcile.Traffic) string {
	var parts []string
	for _, one := range []struct {
		where string
		flow  reconcile.Flow
	}{{"from origins", t.Origins}, {"between nodes", t.Peers}, {"from disk to disk", t.Local}, {"to backups", t.Backups}} {
		f := one.flow
		if f.Transfers == 0 {
			continue
		}
		text := size(f.Bytes)
		switch {
		case f.Unknown == f.Transfers:
			text = fmt.Sprintf("an unknown amount in %s", count(f.Transfers, "transfer"))
		case f.Unknown > 0:
			text = fmt.Sprintf("%s and an unknown amount in %s of %d", text, count(f.Unknown, "transfer"), f.Transfers)
		default:
			text += " in " + count(f.Transfers, "transfer")
		}
		parts = append(parts, one.where+" "+text)
	}
	if len(parts) == 0 {
		return "Nothing is transferred."
	}
	return "Transfers, later ones included: " + strings.Join(parts, "; ") + "."
}

// summary is that of what is due; of nothing it does not say that the disks are as declared.
func (f fleetPlan) summary() string {
	if f.Diff != nil && len(f.due.Actions) == 0 {
		return "Plan: nothing that would not be done without the change."
	}
	return planSummary(f.due)
}

// stateText tells of what the plan was made.
func (f fleetPlan) stateText() string {
	s := f.Fleet.State
	text := fmt.Sprintf("%s, as of %s", count(s.Nodes, "node"), s.Time.UTC().Format("2006-01-02 15:04 UTC"))
	if len(s.Silent) > 0 {
		text += "; not heard of: " + few(s.Silent)
	}
	if f.anyway > 0 {
		text += fmt.Sprintf("; %s would be there without the change", count(f.anyway, "other action"))
	}
	return text + "."
}

// signs are what a cell of images by nodes says of a copy.
const signs = "= stays, + comes, - goes, ~ is worked on; in parentheses: later"

func copySign(c reconcile.CopyForecast) string {
	s := "~"
	switch {
	case c.Action == "":
		s = "="
	case c.Action == reconcile.Cleanup || c.Action == reconcile.Evict:
		s = "-"
	case slices.Contains([]reconcile.Kind{reconcile.Download, reconcile.Upload, reconcile.Export, reconcile.Restore, reconcile.Clone, reconcile.Sync}, c.Action):
		s = "+"
	}
	if c.Later {
		s = "(" + s + ")"
	}
	return s
}

// matrixMost is how many nodes are shown side by side.
const matrixMost = 12

// imageRows has a row for each image of which anything changes: by nodes, or, where
// these are many, with what comes and goes.
func (f fleetPlan) imageRows() (header []string, rows [][]string) {
	nodes, changing := f.changing()
	header = []string{"image", "copies"}
	if len(nodes) <= matrixMost {
		header = append(header, nodes...)
	} else {
		header = append(header, "comes to", "goes from")
	}
	for _, image := range changing {
		row := []string{imageName(image, changing), copiesText(image)}
		if len(nodes) <= matrixMost {
			for _, node := range nodes {
				row = append(row, signsOn(image, node))
			}
		} else {
			row = append(row, placesText(image, "+"), placesText(image, "-"))
		}
		rows = append(rows, row)
	}
	return header, rows
}

// changing are the images of which anything changes, and the nodes on which they are.
func (f fleetPlan) changing() (nodes []string, images []reconcile.ImageForecast) {
	for _, image := range f.Fleet.Images {
		if !slices.ContainsFunc(image.Copies, func(c reconcile.CopyForecast) bool { return c.Action != "" }) {
			continue
		}
		images = append(images, image)
		for _, c := range image.Copies {
			nodes = append(nodes, c.Node)
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), images
}

// imageName shows the uuid where a name is there twice.
func imageName(image reconcile.ImageForecast, all []reconcile.ImageForecast) string {
	for _, other := range all {
		if other.Image == image.Image && other.UUID != image.UUID {
			return image.Image + "-" + image.UUID
		}
	}
	return image.Image
}

func copiesText(image reconcile.ImageForecast) string {
	text := fmt.Sprintf("%d to %d", image.Ready, image.After)
	if image.Ready == image.After {
		text = fmt.Sprint(image.Ready)
	}
	if image.Declared {
		text += fmt.Sprintf(" of %d", image.Wanted)
	}
	return text
}

func signsOn(image reconcile.ImageForecast, node string) string {
	var words []string
	for _, c := range image.Copies {
		if c.Node == node {
			words = append(words, copySign(c)+" "+c.Disk)
		}
	}
	return strings.Join(words, ", ")
}

func placesText(image reconcile.ImageForecast, want string) string {
	var now, later []string
	for _, c := range image.Copies {
		switch strings.Trim(copySign(c), "()") {
		case want:
			if c.Later {
				later = append(later, c.Node+"/"+c.Disk)
			} else {
				now = append(now, c.Node+"/"+c.Disk)
			}
		}
	}
	text := few(now)
	if len(later) > 0 {
		text = strings.TrimPrefix(text+"; later "+few(later), "; ")
	}
	return text
}

var diskHeader = []string{"disk", "free", "comes", "goes", "free then", "reserved", ""}

// diskRows has a row for each disk on which anything changes, those that get too full
// first.
func (f fleetPlan) diskRows() (rows [][]string) {
	var others [][]string
	for _, d := range f.Fleet.Disks {
		name, note := d.Node+"/"+d.Disk, ""
		switch {
		case d.Problem != "":
			note = oneLine(d.Problem)
		case !d.Known && d.Unknown+int(d.Comes) > 0:
			note = "no state tells of it"
		case d.Below:
			note = "below the reserve: down to " + size(d.Lowest)
			if d.Lowest < 0 {
				note = "full: " + size(-d.Lowest) + " too much"
			}
		case d.Comes == 0 && d.Unknown == 0 && d.Goes == 0:
			continue
		}
		comes := size(d.Comes)
		switch {
		case d.Unknown > 0 && d.Comes == 0:
			comes = "unknown"
		case d.Unknown > 0:
			comes = "at least " + comes
		}
		row := []string{name, size(d.Before), comes, size(d.Goes), size(max(0, d.After)), size(d.Reserved), note}
		if d.Below {
			rows = append(rows, row)
		} else {
			others = append(others, row)
		}
	}
	return append(rows, others...)
}

// matterRows has a row for each reason.
func matterRows(matters []reconcile.Matter) (rows [][]string) {
	for _, m := range matters {
		rows = append(rows, []string{fmt.Sprint(len(m.Copies)), few(m.Copies), oneLine(m.Why)})
	}
	return rows
}

// text is the plan of the fleet for people: the actions, then what they come to, and the
// risk at the end, where the eye is.
func (f fleetPlan) text(colour, cluster bool) string {
	var b strings.Builder
	whole := planText(f.Plan, colour, cluster)
	cut := strings.LastIndex(strings.TrimSuffix(whole, "\n"), "\n") + 1
	b.WriteString(whole[:cut])
	imageHeader, imageRows := f.imageRows()
	writeTable(&b, "Images by nodes ("+signs+"):", imageHeader, imageRows)
	writeTable(&b, "Disks:", diskHeader, f.diskRows())
	matterHeader := []string{"", "copies", "why"}
	writeTable(&b, "Held:", matterHeader, matterRows(f.Fleet.Held))
	writeTable(&b, "Blocked:", matterHeader, matterRows(f.Fleet.Blocked))
	if f.Diff != nil {
		b.WriteString(f.Diff.text() + "\n")
	}
	fmt.Fprintf(&b, "%s\n%s\n", trafficText(f.Fleet.Traffic), "For "+f.stateText())
	fmt.Fprintf(&b, "Risk: %s\n%s", riskText(f.Fleet.Risk), f.summary()+"\n")
	return b.String()
}

// writeTable writes rows below a title; nothing where there are none.
func writeTable(b *strings.Builder, title string, header []string, rows [][]string) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintln(b, title)
	upper := make([]string, len(header))
	for i, word := range header {
		upper[i] = strings.ToUpper(word)
	}
	for _, line := range align(append([][]string{upper}, rows...)) {
		fmt.Fprintf(b, "  %s\n", line)
	}
	fmt.Fprintln(b)
}

// fieldDifference is one value that is declared otherwise, as a text; "" where there is
// none.
type fieldDifference struct {
	Field string `json:"field"` // images.parrot.minNumberOfCopies
	Old   string `json:"old"`
	New   string `json:"new"`
}

func newDifference(old, now schema.Config) difference {
	d := difference{Difference: reconcile.Compare(old, now), Fields: []fieldDifference{}}
	changed := map[string]bool{}
	for _, one := range d.Images {
		changed["images."+one.Image+"."] = one.Change == reconcile.Changed
	}
	for _, one := range d.Nodes {
		changed["nodes."+one.Node+"."] = one.Change == reconcile.Changed
	}
	before, after := fieldsOf(old, changed), fieldsOf(now, changed)
	fields := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(fields)
	for _, field := range slices.Compact(fields) {
		if before[field] != after[field] {
			d.Fields = append(d.Fields, fieldDifference{field, before[field], after[field]})
		}
	}
	return d
}

// fieldsOf has the values of settings, and of those images and nodes that changed, by
// the path of the field, as validate -o json shows them.
func fieldsOf(c schema.Config, changed map[string]bool) map[string]string {
	fields := map[string]string{}
	add := func(path string, view any) {
		b, err := json.Marshal(view)
		var tree any
		if err == nil {
			err = json.Unmarshal(b, &tree)
		}
		if err != nil {
			panic("show a configuration: " + err.Error()) // it was made of text
		}
		flatten(fields, path, tree)
	}
	add("settings", viewSettings(c.Settings))
	for name, one := range c.Images {
		if changed["images."+name+"."] {
			add("images."+name, viewImage(one))
		}
	}
	for name, one := range c.Nodes {
		if changed["nodes."+name+"."] {
			add("nodes."+name, viewNode(one))
		}
	}
	return fields
}

func flatten(fields map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, one := range v {
			flatten(fields, path+"."+name, one)
		}
		if len(v) == 0 {
			fields[path] = "{}"
		}
	case []any:
		words := make([]string, len(v))
		for i, one := range v {
			words[i] = fmt.Sprint(one)
		}
		fields[path] = strings.Join(words, ", ")
	case float64:
		fields[path] = fmt.Sprintf("%.0f", v) // there are only whole ones
	default:
		fields[path] = fmt.Sprint(v)
	}
}
