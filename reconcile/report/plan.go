package report

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile"
	"sigs.k8s.io/yaml"
)

// WritePlan writes p in one of the formats text, json, yaml and markdown. In text and
// markdown disks are shown with their nodes if the plan is that of a cluster, or is
// about several nodes anyway.
func WritePlan(w io.Writer, p reconcile.Plan, format string, colour, cluster bool) error {
	switch format {
	case "json":
		return WriteJSON(w, p)
	case "yaml":
		b, err := yaml.Marshal(p)
		if err != nil {
			return fmt.Errorf("write plan: %w", err)
		}
		_, err = w.Write(b)
		return err
	case "markdown":
		_, err := io.WriteString(w, planMarkdown(p, cluster))
		return err
	}
	_, err := io.WriteString(w, planText(p, colour, cluster))
	return err
}

// planText is the plan for people: a line an action, and one that sums up.
func planText(p reconcile.Plan, colour, cluster bool) string {
	var b strings.Builder
	rows := planRows(p, cluster)
	for i, line := range Align(rows) {
		if colour {
			kind := rows[i][0]
			line = paint(reconcile.Kind(kind)) + kind + "\x1b[0m" + line[len(kind):]
		}
		fmt.Fprintf(&b, "  %s\n", line)
	}
	if len(rows) > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintln(&b, PlanSummary(p))
	return b.String()
}

func paint(k reconcile.Kind) string {
	switch k {
	case reconcile.Cleanup, reconcile.Evict:
		return "\x1b[31m"
	case reconcile.Blocked, "suspended":
		return "\x1b[33m"
	case reconcile.Wait:
		return "\x1b[2m"
	}
	return "\x1b[32m"
}

// planMarkdown is the plan as a table for a pull request.
func planMarkdown(p reconcile.Plan, cluster bool) string {
	var b strings.Builder
	rows := planRows(p, cluster)
	if len(rows) > 0 {
		b.WriteString("| action | image | disk | size | reason |\n|---|---|---|---:|---|\n")
	}
	for _, row := range rows {
		for _, cell := range row {
			fmt.Fprintf(&b, "| %s ", markdownCell.Replace(cell))
		}
		b.WriteString("|\n")
	}
	if len(rows) > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "**%s**\n", PlanSummary(p))
	return b.String()
}

// markdownCell keeps what stands in a reason from becoming markup.
var markdownCell = strings.NewReplacer("|", `\|`, "<", "&lt;", "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`)

// mostSuspended is how many suspensions a plan tells of for people.
const mostSuspended = 20

// planRows has a row of cells for each suspension and each action: action, image, disk,
// size, reason.
func planRows(p reconcile.Plan, cluster bool) [][]string {
	name, place := imageNames(p), diskNames(p, cluster)
	var rows [][]string
	for _, s := range p.Suspended[:min(len(p.Suspended), mostSuspended)] {
		rows = append(rows, []string{"suspended", cmp.Or(s.Image, "everything"), "-", "-", suspensionText(s)})
	}
	if more := len(p.Suspended) - mostSuspended; more > 0 {
		rows = append(rows, []string{"suspended", Count(more, "other image"), "-", "-", "as the configuration says"})
	}
	for _, a := range p.Actions {
		rows = append(rows, []string{string(a.Kind), name(a), place(a), sizeText(a), reasonText(a)})
	}
	return rows
}

// imageNames shows the uuid where one name stands for several generations.
func imageNames(p reconcile.Plan) func(reconcile.Action) string {
	uuid, several := map[string]string{}, map[string]bool{}
	for _, a := range p.Actions {
		if before, ok := uuid[a.Image]; ok && before != a.UUID {
			several[a.Image] = true
		}
		uuid[a.Image] = a.UUID
	}
	return func(a reconcile.Action) string {
		if several[a.Image] && a.UUID != "" {
			return a.Key().ID.String()
		}
		return a.Image
	}
}

// diskNames shows the node in the plan of a cluster, and where one is about several.
func diskNames(p reconcile.Plan, cluster bool) func(reconcile.Action) string {
	several := cluster
	for _, a := range p.Actions {
		several = several || a.Node != p.Actions[0].Node
	}
	return func(a reconcile.Action) string {
		switch {
		case a.Disk == "":
			return "-"
		case several:
			return a.Node + "/" + a.Disk
		}
		return a.Disk
	}
}

// suspensionText says who suspended something, why and until when.
func suspensionText(s reconcile.Suspension) string {
	var parts []string
	if s.By != "" {
		parts = append(parts, "by "+s.By)
	}
	if !s.Until.IsZero() {
		parts = append(parts, "until "+planTime(s.Until))
	}
	return OneLine(strings.TrimPrefix(strings.Join(parts, " ")+": "+s.Reason, ": "))
}

func planTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

func sizeText(a reconcile.Action) string {
	switch {
	case a.Idle() || a.Bytes == 0:
		return "-"
	case a.Bytes == reconcile.UnknownBytes:
		return "unknown"
	}
	return Size(a.Bytes)
}

func reasonText(a reconcile.Action) string {
	reason := OneLine(a.Reason)
	if a.From != (reconcile.Key{}) {
		reason += "; from " + a.From.String()
	}
	if !a.Until.IsZero() {
		reason += "; until " + planTime(a.Until)
	}
	return reason
}

// PlanSummary says in one line what the plan comes to.
func PlanSummary(p reconcile.Plan) string {
	n := p.Summary.Counts
	if p.Empty() && n[reconcile.Wait] > 0 {
		return fmt.Sprintf("No changes now: %d waiting.", n[reconcile.Wait])
	}
	if p.Empty() {
		return "No changes. The disks match the configuration."
	}
	parts := []string{
		fmt.Sprintf("%d to fetch", n[reconcile.Download]),
		fmt.Sprintf("%d to sync", n[reconcile.Sync]),
		fmt.Sprintf("%d to clean up", n[reconcile.Cleanup]),
	}
	for _, more := range []struct {
		kind reconcile.Kind
		word string
	}{
		{reconcile.Export, "to export"}, {reconcile.Restore, "to restore"}, {reconcile.Clone, "to clone"},
		{reconcile.Upload, "being uploaded"}, {reconcile.Backup, "to back up"},
		{reconcile.Adopt, "to adopt"}, {reconcile.Verify, "to verify"}, {reconcile.Repair, "to repair"}, {reconcile.Evict, "to evict"},
		{reconcile.Wait, "waiting"}, {reconcile.Blocked, "blocked"},
	} {
		if n[more.kind] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n[more.kind], more.word))
		}
	}
	return fmt.Sprintf("Plan: %s; %s.", strings.Join(parts, ", "), bytesSummary(p.Summary))
}

func bytesSummary(s reconcile.Summary) string {
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
