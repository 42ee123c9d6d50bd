package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// ClusterPlan is the plan of all nodes with its forecast. Its JSON has the fields of the plan and
// more fields. It is a stable interface.
type ClusterPlan struct {
	plan.Plan
	Forecast *forecast.Fleet `json:"forecast,omitempty"`
	Diff     *Difference     `json:"diff,omitempty"`
	// Errors are the errors of the configuration. If there are any, Diff is nil.
	Errors []document.Problem `json:"errors,omitempty"`

	cluster *plan.Cluster
	desired plan.Desired
	// caused has the actions that the plan of the old configuration does not have. Without an
	// old configuration, these are all actions.
	caused plan.Plan
}

// NewClusterPlan returns the plan p of a cluster with its forecast. The argument d is the desired state of any node of the cluster.
func NewClusterPlan(c *plan.Cluster, d plan.Desired, p plan.Plan) ClusterPlan {
	f := forecast.New(c, d, p)
	return ClusterPlan{Plan: p, Forecast: &f, cluster: c, desired: d, caused: p}
}

// Compare separates the actions that a change of the configuration causes from those that
// the plan of the old configuration has, too.
func (c *ClusterPlan) Compare(old ClusterPlan) {
	c.caused = c.Plan.Without(old.Plan)
	c.caused.Suspended = c.Plan.Suspended
	d := NewDifference(old.desired.Config, c.desired.Config)
	d.Unrelated = len(c.Plan.Actions) - len(c.caused.Actions)
	c.Diff = &d
	// The counts of the risk are those of the caused actions. Its lists are those of the whole plan,
	// without the entries of the old plan, because a caused action and another action can together
	// fill a disk.
	risk, whole := forecast.New(c.cluster, c.desired, c.caused).Risk, c.Forecast.Risk
	risk.LosesAll, risk.BelowReserve, risk.BelowCopies = whole.LosesAll, whole.BelowReserve, whole.BelowCopies
	c.Forecast.Risk = risk.Without(old.Forecast.Risk)
}

// Write writes the plan.
func (c ClusterPlan) Write(w io.Writer, style Style) error {
	return write(w, style.Format, c, func() *lines { return c.text(style) }, func() *comment { return c.markdown(style.Cluster) })
}

// text returns the actions, the forecast, the risk and the summary. The most important lines are at
// the end, because a terminal shows the end.
func (c ClusterPlan) text(style Style) *lines {
	b := &lines{}
	writeActions(b, c.Plan, style)
	header, rows := c.imageRows()
	b.table("Images by node ("+signs+"):", header, rows)
	b.table("Disks:", diskHeader, c.diskRows())
	b.table("Deferred deletions:", reasonHeader, reasonRows(c.Forecast.Deferred))
	b.table("Blocked:", reasonHeader, reasonRows(c.Forecast.Blocked))
	if c.Diff != nil {
		b.b.WriteString(c.Diff.text().b.String())
		b.empty()
	}
	b.linef("%s", trafficText(c.Forecast.Traffic))
	b.linef("For %s", c.stateText())
	b.linef("Risk: %s", riskText(c.Forecast.Risk))
	b.linef("%s", c.summary())
	return b
}

// riskText returns one line with the effects that a reviewer should know, the worst first.
func riskText(r forecast.Risk) string {
	var parts []string
	add := func(n int, format string, args ...any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	var short []string
	for _, s := range r.BelowCopies {
		short = append(short, fmt.Sprintf("%s (%d of %d)", s.Image, s.After, s.Desired))
	}
	amount := func(s forecast.CopyStats) string {
		return fmt.Sprintf("%s (%s)", Count(s.Copies, "copy"), Size(s.Bytes))
	}
	add(len(r.LosesAll), "loses all copies: %s", joinNames(r.LosesAll))
	add(r.Removes.Copies, "deletes %s", amount(r.Removes))
	add(r.Evicts.Copies, "evicts %s", amount(r.Evicts))
	add(r.RemovesLater.Copies, "deletes %s later", amount(r.RemovesLater))
	add(len(r.BelowReserve), "below the reserve: %s", joinNames(r.BelowReserve))
	add(len(short), "fewer copies than declared: %s", joinNames(short))
	add(r.Blocked, "%d blocked", r.Blocked)
	add(r.Deferred, "%d deferred", r.Deferred)
	if len(parts) == 0 {
		return "Deletes nothing."
	}
	parts[0] = strings.ToUpper(parts[0][:1]) + parts[0][1:]
	return strings.Join(parts, "; ") + "."
}

// trafficText returns one line about the bytes to transfer.
func trafficText(t forecast.Traffic) string {
	var parts []string
	for _, route := range []struct {
		name  string
		stats forecast.TransferStats
	}{{"from sources", t.Upstreams}, {"between nodes", t.Peers}, {"between disks of a node", t.Local}, {"to backups", t.Backups}} {
		s := route.stats
		if s.Transfers == 0 {
			continue
		}
		text := Size(s.Bytes)
		switch {
		case s.Unknown == s.Transfers:
			text = fmt.Sprintf("an unknown amount in %s", Count(s.Transfers, "transfer"))
		case s.Unknown > 0:
			text = fmt.Sprintf("%s and an unknown amount in %s of %d", text, Count(s.Unknown, "transfer"), s.Transfers)
		default:
			text += " in " + Count(s.Transfers, "transfer")
		}
		parts = append(parts, route.name+" "+text)
	}
	if len(parts) == 0 {
		return "Nothing is transferred."
	}
	return "Transfers, including later ones: " + strings.Join(parts, "; ") + "."
}

// summary returns the summary of the caused actions. Without caused actions, PlanSummary would
// state that the disks match the configuration.
func (c ClusterPlan) summary() string {
	if c.Diff != nil && len(c.caused.Actions) == 0 {
		return "Plan: the change causes no actions."
	}
	return PlanSummary(c.caused)
}

// stateText describes the saved states, and counts the actions that the change does not cause.
func (c ClusterPlan) stateText() string {
	s := c.Forecast.State
	text := fmt.Sprintf("%s, as of %s", Count(s.Nodes, "node"), s.Time.UTC().Format("2006-01-02 15:04 UTC"))
	if len(s.Unreachable) > 0 {
		text += "; unreachable: " + joinNames(s.Unreachable)
	}
	if c.Diff != nil && c.Diff.Unrelated > 0 {
		text += fmt.Sprintf("; %s not caused by the change", Count(c.Diff.Unrelated, "other action"))
	}
	return text + "."
}

// signs explains the cells of the images by node.
const signs = "= unchanged, + created, - deleted, ~ in progress; in parentheses: later"

// sign is what happens to a copy. The constant signs explains it to readers.
type sign string

const (
	unchanged  sign = "="
	created    sign = "+"
	deleted    sign = "-"
	inProgress sign = "~"
)

func signOf(c forecast.CopyForecast) sign {
	switch {
	case c.Op == "":
		return unchanged
	case c.Op.Deletes():
		return deleted
	case c.Op.CreatesCopy():
		return created
	}
	return inProgress
}

// maxColumns is the greatest number of nodes with a column each.
const maxColumns = 12

// imageRows returns a row for each image with changes. Each node has a column. If there are too
// many nodes, there is one column for the created and one for the deleted copies.
func (c ClusterPlan) imageRows() (header []string, rows [][]string) {
	nodes, images := c.changedImages()
	var ids []ident.ID
	for _, image := range images {
		ids = append(ids, ident.ID{Name: image.Image, UUID: image.UUID})
	}
	name := imageNames(ids)
	header = []string{"image", "copies"}
	if len(nodes) <= maxColumns {
		header = append(header, nodes...)
	} else {
		header = append(header, "created on", "deleted on")
	}
	for i, image := range images {
		row := []string{name(ids[i]), copiesText(image)}
		if len(nodes) <= maxColumns {
			for _, node := range nodes {
				row = append(row, signsOn(image, node))
			}
		} else {
			row = append(row, disksWithSign(image, created), disksWithSign(image, deleted))
		}
		rows = append(rows, row)
	}
	return header, rows
}

// changedImages returns the images with changes, and the nodes of their copies.
func (c ClusterPlan) changedImages() (nodes []string, images []forecast.ImageForecast) {
	for _, image := range c.Forecast.Images {
		if !slices.ContainsFunc(image.Copies, func(c forecast.CopyForecast) bool { return c.Op != "" }) {
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
		switch {
		case c.Node != node:
		case c.Later:
			words = append(words, fmt.Sprintf("(%s) %s", signOf(c), c.Disk))
		default:
			words = append(words, fmt.Sprintf("%s %s", signOf(c), c.Disk))
		}
	}
	return strings.Join(words, ", ")
}

// disksWithSign lists the disks of the copies with the sign want.
func disksWithSign(image forecast.ImageForecast, want sign) string {
	var now, later []string
	for _, c := range image.Copies {
		switch {
		case signOf(c) != want:
		case c.Later:
			later = append(later, c.Node+"/"+c.Disk)
		default:
			now = append(now, c.Node+"/"+c.Disk)
		}
	}
	var parts []string
	if len(now) > 0 {
		parts = append(parts, joinNames(now))
	}
	if len(later) > 0 {
		parts = append(parts, "later "+joinNames(later))
	}
	return strings.Join(parts, "; ")
}

var diskHeader = []string{"disk", "free", "added", "removed", "free after", "reserved", ""}

// diskRows returns a row for each disk with changes or problems. Disks that become too full
// come first.
func (c ClusterPlan) diskRows() (rows [][]string) {
	var others [][]string
	for _, d := range c.Forecast.Disks {
		name, note := d.Node+"/"+d.Disk, ""
		switch {
		case d.Problem != "":
			note = text.Line(d.Problem)
		case !d.Known && d.CreatedUnknown+int(d.Created) > 0:
			note = "not in a saved state"
		case d.BelowReserve && d.FreeLowest < 0:
			note = "full: " + Size(-d.FreeLowest) + " missing"
		case d.BelowReserve:
			note = "below the reserve: down to " + Size(d.FreeLowest)
		case d.Created == 0 && d.CreatedUnknown == 0 && d.Deleted == 0:
			continue
		}
		added := Size(d.Created)
		switch {
		case d.CreatedUnknown > 0 && d.Created == 0:
			added = "unknown"
		case d.CreatedUnknown > 0:
			added = "at least " + added
		}
		row := []string{name, Size(d.FreeBefore), added, Size(d.Deleted), Size(max(0, d.FreeAfter)), Size(d.Reserved), note}
		if d.BelowReserve {
			rows = append(rows, row)
		} else {
			others = append(others, row)
		}
	}
	return append(rows, others...)
}

var reasonHeader = []string{"", "copies", "reason"}

// reasonRows returns a row for each reason.
func reasonRows(groups []forecast.ReasonGroup) (rows [][]string) {
	for _, g := range groups {
		rows = append(rows, []string{fmt.Sprint(len(g.Copies)), joinNames(g.Copies), text.Line(g.Reason)})
	}
	return rows
}

func countReasons(groups []forecast.ReasonGroup) (n int) {
	for _, g := range groups {
		n += len(g.Copies)
	}
	return n
}
