package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Style is the format of a plan, and the options of the formats Text and Markdown.
type Style struct {
	Format  Format
	Colour  bool   // Text has colours
	Cluster bool   // always name the node of a disk; false means only in a plan for several nodes
	Outcome string // what Text and Markdown have instead of the plan; "" means the plan
}

// WritePlan writes a plan.
func WritePlan(w io.Writer, p plan.Plan, style Style) error {
	text := func() *lines {
		b := &lines{}
		if style.Outcome == "" {
			writeActions(b, p, style)
		}
		b.linef("%s", cmp.Or(style.Outcome, PlanSummary(p)))
		return b
	}
	return write(w, style.Format, p, text, func() *comment { return planMarkdown(p, style) })
}

// Outcome returns the line that replaces the plan p of one node, whose desired state is d. "" means that p itself says
// enough. The argument worked reports whether a run has executed an action.
func Outcome(d plan.Desired, o plan.Observed, p plan.Plan, worked bool) string {
	disks, all := "The disks match the configuration.", true
	for _, seen := range o.Disks {
		if seen.Problem != "" {
			disks, all = "The disks that can be used match the configuration.", false
		}
	}
	switch {
	case d.Allowed == schema.ObserveOnly:
		return "No plan: too much of the configuration is invalid: correct its errors."
	case len(p.Actions) > 0:
		return ""
	case worked:
		return "Done. " + disks
	case d.Only != nil:
		return "No changes: the saved plan has no actions for this node."
	case !all:
		return "No changes. " + disks
	}
	return ""
}

// writeActions writes one line for each suspension and each action, and an empty line.
func writeActions(b *lines, p plan.Plan, style Style) {
	rows := planRows(p, style.Cluster)
	suspensions := len(rows) - len(p.Actions)
	for i, line := range Align(rows) {
		if style.Colour {
			colour := yellow
			if i >= suspensions {
				colour = colourOf(p.Actions[i-suspensions].Op)
			}
			word := rows[i][0] // an action, or "suspended"
			b.coloured(colour, "  ", word, line[len(word):])
		} else {
			b.linef("  %s", line)
		}
	}
	if len(rows) > 0 {
		b.empty()
	}
}

// colour is the escape sequence of a terminal for a colour.
type colour string

const (
	red      colour = "\x1b[31m"
	green    colour = "\x1b[32m"
	yellow   colour = "\x1b[33m"
	faint    colour = "\x1b[2m"
	noColour colour = "\x1b[0m"
)

func colourOf(op model.Op) colour {
	switch op {
	case model.Cleanup, model.Evict:
		return red
	case model.Blocked:
		return yellow
	case model.Wait:
		return faint
	}
	return green
}

// planMarkdown returns the plan as a table.
func planMarkdown(p plan.Plan, style Style) *comment {
	b := &comment{}
	var rows [][]string
	if style.Outcome == "" {
		rows = planRows(p, style.Cluster)
	}
	if len(rows) > 0 {
		b.linef("| op | image | disk | size | reason |")
		b.linef("|---|---|---|---:|---|")
	}
	for _, row := range rows {
		b.row(row)
	}
	if len(rows) > 0 {
		b.linef("")
	}
	b.linef("**%v**", cmp.Or(style.Outcome, PlanSummary(p)))
	return b
}

// maxSuspended is the greatest number of rows with suspensions. One more row counts the others.
const maxSuspended = 20

// planRows returns a row for each suspension and each action: action, image, disk, size and
// reason.
func planRows(p plan.Plan, cluster bool) [][]string {
	var ids []ident.ID
	for _, a := range p.Actions {
		ids = append(ids, a.CopyRef().ID)
	}
	image, disk := imageNames(ids), diskNames(p, cluster)
	var rows [][]string
	for _, s := range p.Suspended[:min(len(p.Suspended), maxSuspended)] {
		rows = append(rows, []string{"suspended", cmp.Or(s.Image, "everything"), "-", "-", suspensionText(s)})
	}
	if more := len(p.Suspended) - maxSuspended; more > 0 {
		rows = append(rows, []string{"suspended", Count(more, "other image"), "-", "-", "see the configuration"})
	}
	for _, a := range p.Actions {
		rows = append(rows, []string{string(a.Op), image(a.CopyRef().ID), disk(a), sizeText(a), reasonText(a)})
	}
	return rows
}

// imageNames returns a function that names the images in ids. If ids has several generations of an image, the name has the uuid.
func imageNames(ids []ident.ID) func(ident.ID) string {
	uuid, several := map[string]string{}, map[string]bool{}
	for _, id := range ids {
		if before, ok := uuid[id.Name]; ok && before != id.UUID {
			several[id.Name] = true
		}
		uuid[id.Name] = id.UUID
	}
	return func(id ident.ID) string {
		if several[id.Name] && id.UUID != "" {
			return id.String()
		}
		return id.Name
	}
}

// diskNames returns a function that names the disk of an action. The name includes the node if
// cluster is true, or if the plan has actions of several nodes.
func diskNames(p plan.Plan, cluster bool) func(plan.Action) string {
	several := cluster
	for _, a := range p.Actions {
		several = several || a.Node != p.Actions[0].Node
	}
	return func(a plan.Action) string {
		switch {
		case a.Disk == "":
			return "-"
		case several:
			return a.Node + "/" + a.Disk
		}
		return a.Disk
	}
}

// suspensionText returns who suspended something, until when and why.
func suspensionText(s plan.Suspension) string {
	var parts []string
	if s.By != "" {
		parts = append(parts, "by "+s.By)
	}
	if !s.Until.IsZero() {
		parts = append(parts, "until "+planTime(s.Until))
	}
	if len(parts) == 0 {
		return text.Line(s.Reason)
	}
	return text.Line(strings.Join(parts, " ") + ": " + s.Reason)
}

func planTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func sizeText(a plan.Action) string {
	switch {
	case a.Idle() || a.Bytes == 0 && a.Size == 0:
		return "-"
	case a.Bytes == plan.UnknownBytes && a.Size == 0:
		return "unknown"
	case a.Bytes == plan.UnknownBytes:
		return "unknown part of " + Size(a.Size) + " by index"
	case a.Size > 0:
		return Size(a.Bytes) + " of " + Size(a.Size) + " by index"
	}
	return Size(a.Bytes)
}

func reasonText(a plan.Action) string {
	reason := text.Line(a.Text)
	if a.From != (ident.CopyRef{}) {
		reason += "; from " + a.From.String()
	}
	switch {
	case a.Until.IsZero():
	case a.Code == plan.CodeRetry, a.Code == plan.CodeRejected:
		reason += "; next attempt at " + planTime(a.Until)
	default:
		reason += "; until " + planTime(a.Until)
	}
	return reason
}

// PlanSummary returns one line that counts the actions and the bytes. A wait with the code generation-kept counts as
// kept, because it does not end.
func PlanSummary(p plan.Plan) string {
	n, kept := p.Summary.Counts, 0
	for _, a := range p.Actions {
		if a.Code == plan.CodeGenerationKept {
			kept++
		}
	}
	waiting := n[model.Wait] - kept
	switch {
	case p.Empty() && waiting == 0:
		return "No changes. The disks match the configuration."
	case p.Empty() && kept > 0:
		return fmt.Sprintf("No changes now: %d waiting, %d kept.", waiting, kept)
	case p.Empty():
		return fmt.Sprintf("No changes now: %d waiting.", waiting)
	}
	parts := []string{
		fmt.Sprintf("%d to fetch", n[model.Download]),
		fmt.Sprintf("%d to sync", n[model.Sync]),
		fmt.Sprintf("%d to clean up", n[model.Cleanup]),
	}
	for _, more := range []struct {
		n    int
		word string
	}{
		{n[model.Export], "to export"}, {n[model.Restore], "to restore"}, {n[model.Clone], "to clone"},
		{n[model.Upload], "being uploaded"}, {n[model.Backup], "to back up"},
		{n[model.Adopt], "to adopt"}, {n[model.Verify], "to verify"}, {n[model.Repair], "to repair"}, {n[model.Evict], "to evict"},
		{waiting, "waiting"}, {kept, "kept"}, {n[model.Blocked], "blocked"},
	} {
		if more.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", more.n, more.word))
		}
	}
	return fmt.Sprintf("Plan: %s; %s.", strings.Join(parts, ", "), bytesSummary(p.Summary))
}

func bytesSummary(s plan.Summary) string {
	text := Size(s.TransferBytes) + " to transfer"
	switch {
	case s.UnknownSizes > 0 && s.TransferBytes == 0:
		text = "an unknown amount to transfer"
	case s.UnknownSizes > 0:
		text = "at least " + text
	}
	if s.FreedBytes > 0 {
		text += ", " + Size(s.FreedBytes) + " to free"
	}
	return text
}
