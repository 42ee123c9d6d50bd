package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// ClusterPlan is the plan of all nodes and what it comes to. In JSON it is the plan with
// more fields; it is a stable interface.
type ClusterPlan struct {
	plan.Plan
	Fleet *forecast.Fleet `json:"fleet,omitempty"`
	Diff  *Difference     `json:"diff,omitempty"`
	// Mistakes are those of the configuration. While it has any there is no Diff.
	Mistakes []document.Problem `json:"mistakes,omitempty"`

	due plan.Plan // what is not done anyway: all of it, if there is nothing to compare with
	// anyway is how many actions the configuration that was compared with has too.
	anyway int
}

// Difference is what two configurations differ in, and by which fields.
type Difference struct {
	forecast.Difference
	Fields []fieldDifference `json:"fields"` // of what both declare, sorted
	// Anyway is how many of the actions are planned under the old configuration too, where a
	// state is given.
	Anyway int `json:"anyway"`
}

func NewClusterPlan(fleet forecast.Fleet, p plan.Plan) ClusterPlan {
	return ClusterPlan{Plan: p, Fleet: &fleet, due: p}
}

// Split tells apart what is done because of a difference and what was planned before,
// with its risk, too. comesTo says what a part of the plan comes to.
func (f *ClusterPlan) Split(d Difference, before plan.Plan, had forecast.Risk, comesTo func(plan.Plan) forecast.Fleet) {
	f.due = f.Plan.Without(before)
	f.due.Suspended = f.Plan.Suspended
	f.anyway = len(f.Plan.Actions) - len(f.due.Actions)
	d.Anyway = f.anyway
	f.Diff = &d
	// Of each list what is new, and of the numbers those of what is new.
	risk := comesTo(f.due).Risk
	risk.LosesAll, risk.BelowReserve, risk.BelowCopies = f.Fleet.Risk.LosesAll, f.Fleet.Risk.BelowReserve, f.Fleet.Risk.BelowCopies
	f.Fleet.Risk = risk.Without(had)
}

// Write prints the plan in one of the formats text, json, yaml and markdown.
func (f ClusterPlan) Write(w io.Writer, format string, colour, cluster bool) error {
	switch format {
	case "json":
		return WriteJSON(w, f)
	case "yaml":
		return writeYAML(w, f)
	case "markdown":
		_, err := io.WriteString(w, f.markdown(cluster))
		return err
	}
	_, err := io.WriteString(w, f.text(colour, cluster))
	return err
}

// WriteDifference prints the difference alone.
func (f ClusterPlan) WriteDifference(w io.Writer, format string) error {
	alone := struct {
		Diff *Difference `json:"diff"`
	}{f.Diff}
	switch format {
	case "json":
		return WriteJSON(w, alone)
	case "yaml":
		return writeYAML(w, alone)
	case "markdown":
		_, err := io.WriteString(w, f.Diff.markdown())
		return err
	}
	_, err := io.WriteString(w, f.Diff.text())
	return err
}

// maxNames is the number of names in a line of text.
const maxNames = 3

// riskText says in one line what somebody who approves a plan should know, the worst
// first.
func riskText(r forecast.Risk) string {
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
	amount := func(a forecast.CopyStats) string { return fmt.Sprintf("%s (%s)", countCopies(a.Copies), Size(a.Bytes)) }
	say(len(r.LosesAll), "loses all copies: %s", JoinMax(r.LosesAll, maxNames))
	say(r.Removes.Copies, "deletes %s", amount(r.Removes))
	say(r.Evicts.Copies, "evicts %s", amount(r.Evicts))
	say(r.Later.Copies, "deletes %s later", amount(r.Later))
	say(len(r.BelowReserve), "below the reserve: %s", JoinMax(r.BelowReserve, maxNames))
	say(len(short), "fewer copies than declared: %s", JoinMax(short, maxNames))
	say(r.Blocked, "%d blocked", r.Blocked)
	say(r.Held, "%d held", r.Held)
	if len(parts) == 0 {
		return "Deletes nothing."
	}
	parts[0] = strings.ToUpper(parts[0][:1]) + parts[0][1:]
	return strings.Join(parts, "; ") + "."
}

// trafficText is one line about what is moved.
func trafficText(t forecast.Traffic) string {
	var parts []string
	for _, one := range []struct {
		where string
		flow  forecast.TransferStats
	}{{"from origins", t.Origins}, {"between nodes", t.Peers}, {"from disk to disk", t.Local}, {"to backups", t.Backups}} {
		f := one.flow
		if f.Transfers == 0 {
			continue
		}
		text := Size(f.Bytes)
		switch {
		case f.Unknown == f.Transfers:
			text = fmt.Sprintf("an unknown amount in %s", Count(f.Transfers, "transfer"))
		case f.Unknown > 0:
			text = fmt.Sprintf("%s and an unknown amount in %s of %d", text, Count(f.Unknown, "transfer"), f.Transfers)
		default:
			text += " in " + Count(f.Transfers, "transfer")
		}
		parts = append(parts, one.where+" "+text)
	}
	if len(parts) == 0 {
		return "Nothing is transferred."
	}
	return "Transfers, later ones included: " + strings.Join(parts, "; ") + "."
}

// summary is that of what is due; of nothing it does not say that the disks are as declared.
func (f ClusterPlan) summary() string {
	if f.Diff != nil && len(f.due.Actions) == 0 {
		return "Plan: nothing that would not be done without the change."
	}
	return PlanSummary(f.due)
}

// stateText tells of what the plan was made.
func (f ClusterPlan) stateText() string {
	s := f.Fleet.State
	text := fmt.Sprintf("%s, as of %s", Count(s.Nodes, "node"), s.Time.UTC().Format("2006-01-02 15:04 UTC"))
	if len(s.Silent) > 0 {
		text += "; not heard of: " + JoinMax(s.Silent, maxNames)
	}
	if f.anyway > 0 {
		text += fmt.Sprintf("; %s would be there without the change", Count(f.anyway, "other action"))
	}
	return text + "."
}

// signs are what a cell of images by nodes says of a copy.
const signs = "= stays, + comes, - goes, ~ is worked on; in parentheses: later"

func copySign(c forecast.CopyForecast) string {
	s := "~"
	switch {
	case c.Action == "":
		s = "="
	case c.Action == plan.Cleanup || c.Action == plan.Evict:
		s = "-"
	case slices.Contains([]plan.Op{plan.Download, plan.Upload, plan.Export, plan.Restore, plan.Clone, plan.Sync}, c.Action):
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
func (f ClusterPlan) imageRows() (header []string, rows [][]string) {
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
func (f ClusterPlan) changing() (nodes []string, images []forecast.ImageForecast) {
	for _, image := range f.Fleet.Images {
		if !slices.ContainsFunc(image.Copies, func(c forecast.CopyForecast) bool { return c.Action != "" }) {
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
func imageName(image forecast.ImageForecast, all []forecast.ImageForecast) string {
	for _, other := range all {
		if other.Image == image.Image && other.UUID != image.UUID {
			return image.Image + "-" + image.UUID
		}
	}
	return image.Image
}

func copiesText(image forecast.ImageForecast) string {
	text := fmt.Sprintf("%d to %d", image.Ready, image.After)
	if image.Ready == image.After {
		text = fmt.Sprint(image.Ready)
	}
	if image.Declared {
		text += fmt.Sprintf(" of %d", image.Desired)
	}
	return text
}

func signsOn(image forecast.ImageForecast, node string) string {
	var words []string
	for _, c := range image.Copies {
		if c.Node == node {
			words = append(words, copySign(c)+" "+c.Disk)
		}
	}
	return strings.Join(words, ", ")
}

func placesText(image forecast.ImageForecast, want string) string {
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
	text := JoinMax(now, maxNames)
	if len(later) > 0 {
		text = strings.TrimPrefix(text+"; later "+JoinMax(later, maxNames), "; ")
	}
	return text
}

var diskHeader = []string{"disk", "free", "comes", "goes", "free then", "reserved", ""}

// diskRows has a row for each disk on which anything changes, those that get too full
// first.
func (f ClusterPlan) diskRows() (rows [][]string) {
	var others [][]string
	for _, d := range f.Fleet.Disks {
		name, note := d.Node+"/"+d.Disk, ""
		switch {
		case d.Problem != "":
			note = OneLine(d.Problem)
		case !d.Known && d.Unknown+int(d.Comes) > 0:
			note = "no state tells of it"
		case d.Below:
			note = "below the reserve: down to " + Size(d.Lowest)
			if d.Lowest < 0 {
				note = "full: " + Size(-d.Lowest) + " too much"
			}
		case d.Comes == 0 && d.Unknown == 0 && d.Goes == 0:
			continue
		}
		comes := Size(d.Comes)
		switch {
		case d.Unknown > 0 && d.Comes == 0:
			comes = "unknown"
		case d.Unknown > 0:
			comes = "at least " + comes
		}
		row := []string{name, Size(d.Before), comes, Size(d.Goes), Size(max(0, d.After)), Size(d.Reserved), note}
		if d.Below {
			rows = append(rows, row)
		} else {
			others = append(others, row)
		}
	}
	return append(rows, others...)
}

// matterRows has a row for each reason.
func matterRows(matters []forecast.ReasonGroup) (rows [][]string) {
	for _, m := range matters {
		rows = append(rows, []string{fmt.Sprint(len(m.Copies)), JoinMax(m.Copies, maxNames), OneLine(m.Reason)})
	}
	return rows
}

// text is the plan of the fleet for people: the actions, then what they come to, and the
// risk at the end, where the eye is.
func (f ClusterPlan) text(colour, cluster bool) string {
	var b strings.Builder
	whole := planText(f.Plan, colour, cluster)
	cut := strings.LastIndex(strings.TrimSuffix(whole, "\n"), "\n") + 1
	b.WriteString(whole[:cut])
	imageHeader, imageRows := f.imageRows()
	writeTable(&b, "Images by nodes ("+signs+"):", imageHeader, imageRows)
	writeTable(&b, "Disks:", diskHeader, f.diskRows())
	matterHeader := []string{"", "copies", "why"}
	writeTable(&b, "Held:", matterHeader, matterRows(f.Fleet.Deferred))
	writeTable(&b, "Blocked:", matterHeader, matterRows(f.Fleet.Blocked))
	if f.Diff != nil {
		b.WriteString(f.Diff.text() + "\n")
	}
	fmt.Fprintf(&b, "%s\n%s\n", trafficText(f.Fleet.Traffic), "For "+f.stateText())
	fmt.Fprintf(&b, "Risk: %s\n%s", riskText(f.Fleet.Risk), f.summary()+"\n")
	return b.String()
}
