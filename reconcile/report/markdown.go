package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// maxComment is the size of a comment on a pull request, in bytes. GitHub accepts 65,536
// characters.
const maxComment = 60_000

// comment is Markdown for a pull request. Its tables stop before it reaches maxComment. Names and
// messages in it come from files and from other machines. Each of its methods escapes them.
type comment struct{ b strings.Builder }

// linef adds a line. The format is Markdown with the verb %v only. All arguments are escaped.
func (c *comment) linef(format string, args ...any) {
	escaped := make([]any, len(args))
	for i, arg := range args {
		escaped[i] = markdownText(fmt.Sprint(arg))
	}
	fmt.Fprintf(&c.b, format+"\n", escaped...)
}

// row adds the row of a table.
func (c *comment) row(cells []string) {
	for _, cell := range cells {
		fmt.Fprintf(&c.b, "| %s ", markdownText(clip(cell)))
	}
	c.b.WriteString("|\n")
}

// table adds a folded table, unless it has no rows. It keeps reserve bytes for what follows,
// and counts the rows that have no room. The title is not escaped.
func (c *comment) table(title string, header []string, rows [][]string, reserve int) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(&c.b, "\n<details><summary>%s</summary>\n\n", title)
	c.row(header)
	c.b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for i, row := range rows {
		if c.b.Len() > maxComment-reserve {
			c.linef("\n… and %v more: `-o json` has all.", len(rows)-i)
			break
		}
		c.row(row)
	}
	c.linef("\n</details>")
}

func (c *comment) writeTo(w io.Writer) error {
	_, err := io.WriteString(w, c.b.String())
	return err
}

// markdownText escapes text, so that Markdown shows it literally. An invisible space (&#8203;) after @
// and # keeps GitHub and GitLab from notifying a person and from linking an issue. Markdown may still turn
// a URL into a link. That is harmless: the link shows its target.
func markdownText(s string) string { return markdownEscapes.Replace(text.Line(s)) }

var markdownEscapes = strings.NewReplacer(
	`\`, `\\`, "|", `\|`, "`", "\\`", "*", `\*`, "_", `\_`, "[", `\[`, "~", `\~`, "$", `\$`,
	"&", "&amp;", "<", "&lt;", "@", "@&#8203;", "#", "#&#8203;",
)

// errors adds the errors of a configuration.
func (b *comment) errors(all []document.Problem) {
	if len(all) == 0 {
		return
	}
	b.linef("\n**The configuration has %v.** As long as it has errors, nothing is deleted, invalid images are not changed, and `--diff` shows nothing.",
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
	return b.writeTo(w)
}

// markdown returns the plan as a comment: three lines with the effects, and folded tables,
// the most important ones first.
func (c ClusterPlan) markdown(cluster bool) *comment {
	b := &comment{}
	b.linef("### %v\n**%v**\n%v For %v", riskText(c.Forecast.Risk), c.summary(), trafficText(c.Forecast.Traffic), c.stateText())
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
	actions := []string{"op", "image", "disk", "size", "reason"}
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
	return b
}
