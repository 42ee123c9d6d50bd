package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// maxComment is the size of a comment on a pull request, in bytes. GitHub accepts 65,536
// characters.
const maxComment = 60_000

// comment is Markdown for a pull request. Its tables stop before it reaches maxComment.
type comment struct{ strings.Builder }

// table adds a folded table, unless it has no rows. It keeps reserve bytes for what follows,
// and counts the rows that have no room.
func (b *comment) table(title string, header []string, rows [][]string, reserve int) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n<details><summary>%s</summary>\n\n", markdownCell.Replace(title))
	b.row(header)
	b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for i, row := range rows {
		if b.Len() > maxComment-reserve {
			fmt.Fprintf(b, "\n… and %d more: `-o json` has all.\n", len(rows)-i)
			break
		}
		b.row(row)
	}
	b.WriteString("\n</details>\n")
}

func (b *comment) row(cells []string) {
	for _, cell := range cells {
		if runes := []rune(cell); len(runes) > maxText {
			cell = string(runes[:maxText]) + "…"
		}
		fmt.Fprintf(b, "| %s ", markdownCell.Replace(cell))
	}
	b.WriteString("|\n")
}

// errors adds the errors of a configuration.
func (b *comment) errors(all []document.Problem) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b, "\n**The configuration has %s.** As long as it has errors, nothing is deleted, invalid images are not changed, and `--diff` shows nothing.\n",
		Count(len(all), "error"))
	var rows [][]string
	for _, p := range all {
		rows = append(rows, []string{p.String()})
	}
	b.table(fmt.Sprintf("Errors (%d)", len(all)), []string{"error"}, rows, 55_000)
}

// WriteErrors writes the errors of a configuration as Markdown.
func WriteErrors(w io.Writer, errors []document.Problem) error {
	b := &comment{}
	b.errors(errors)
	_, err := io.WriteString(w, b.String())
	return err
}

// markdown returns the plan as a comment: three lines with the effects, and folded tables,
// the most important ones first.
func (c ClusterPlan) markdown(cluster bool) string {
	b := &comment{}
	fmt.Fprintf(b, "### %s\n**%s**\n%s For %s\n", markdownCell.Replace(riskText(c.Forecast.Risk)), c.summary(),
		markdownCell.Replace(trafficText(c.Forecast.Traffic)), markdownCell.Replace(c.stateText()))
	b.errors(c.Errors)
	b.table(fmt.Sprintf("Blocked (%d)", countReasons(c.Forecast.Blocked)), reasonHeader, reasonRows(c.Forecast.Blocked), 50_000)
	b.table(fmt.Sprintf("Deferred deletions (%d)", countReasons(c.Forecast.Deferred)), reasonHeader, reasonRows(c.Forecast.Deferred), 45_000)
	if c.Diff != nil {
		c.Diff.tables(b, 35_000)
	}
	header, rows := c.imageRows()
	b.table(fmt.Sprintf("Images by node (%d): %s", len(rows), signs), header, rows, 25_000)
	rows = c.diskRows()
	b.table(fmt.Sprintf("Disks (%d)", len(rows)), diskHeader, rows, 15_000)
	actions := []string{"action", "image", "disk", "size", "reason"}
	rows = planRows(c.caused, cluster)
	title := "Actions (%d)"
	if c.Diff != nil {
		title = "Actions caused by the change (%d)"
	}
	b.table(fmt.Sprintf(title, len(rows)), actions, rows, 5_000)
	if c.Diff != nil {
		rows = planRows(c.Plan.Without(c.caused), cluster)
		b.table(fmt.Sprintf("Other actions (%d)", len(rows)), actions, rows, 1_000)
	}
	return b.String()
}
