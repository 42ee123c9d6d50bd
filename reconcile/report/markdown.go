package report

import (
	"fmt"
	"io"
	"strings"

	"github.com/seed-26586806/backing-image-manager/reconcile/forecast"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// A comment on GitHub has at most 65,536 characters.
const markdownMost = 60_000

// markdownPage is text for a comment that does not grow over markdownMost.
type markdownPage struct{ strings.Builder }

// table writes a folded table: as many of the rows as there is room for. share is how many
// bytes are kept for what comes behind.
func (b *markdownPage) table(title string, header []string, rows [][]string, share int) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n<details><summary>%s</summary>\n\n", markdownCell.Replace(title))
	b.row(header)
	b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for i, row := range rows {
		if b.Len() > markdownMost-share {
			fmt.Fprintf(b, "\n… and %d more: `-o json` has all.\n", len(rows)-i)
			break
		}
		b.row(row)
	}
	b.WriteString("\n</details>\n")
}

// cellMost is how long a cell may be: reasons hold what other programs said.
const cellMost = 400

func (b *markdownPage) row(cells []string) {
	for _, cell := range cells {
		if runes := []rune(cell); len(runes) > cellMost {
			cell = string(runes[:cellMost]) + "…"
		}
		fmt.Fprintf(b, "| %s ", markdownCell.Replace(cell))
	}
	b.WriteString("|\n")
}

// markdown is the plan of the fleet for a comment: three lines that say what it does,
// and the rest folded.
func (f ClusterPlan) markdown(cluster bool) string {
	b := &markdownPage{}
	fmt.Fprintf(b, "### %s\n**%s**\n%s For %s\n", markdownCell.Replace(riskText(f.Fleet.Risk)), f.summary(),
		markdownCell.Replace(trafficText(f.Fleet.Traffic)), markdownCell.Replace(f.stateText()))
	b.mistakes(f.Mistakes)
	matterHeader := []string{"", "copies", "why"}
	b.table(fmt.Sprintf("Blocked (%d)", matterCount(f.Fleet.Blocked)), matterHeader, matterRows(f.Fleet.Blocked), 50_000)
	b.table(fmt.Sprintf("Held (%d)", matterCount(f.Fleet.Deferred)), matterHeader, matterRows(f.Fleet.Deferred), 45_000)
	if f.Diff != nil {
		f.Diff.tables(b, 35_000)
	}
	header, rows := f.imageRows()
	b.table(fmt.Sprintf("Images by nodes (%d): %s", len(rows), signs), header, rows, 25_000)
	rows = f.diskRows()
	b.table(fmt.Sprintf("Disks (%d)", len(rows)), diskHeader, rows, 15_000)
	actions := []string{"action", "image", "disk", "size", "reason"}
	rows = planRows(f.due, cluster)
	title := "Actions (%d)"
	if f.Diff != nil {
		title = "Actions because of the change (%d)"
	}
	b.table(fmt.Sprintf(title, len(rows)), actions, rows, 5_000)
	if f.Diff != nil {
		rows = planRows(f.Plan.Without(f.due), cluster)
		b.table(fmt.Sprintf("Actions without the change (%d)", len(rows)), actions, rows, 1_000)
	}
	return b.String()
}

// mistakes says that the configuration has some, which is more than what it would do.
func (b *markdownPage) mistakes(all []document.Problem) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(b, "\n**The configuration has %s.** Until it has none, nothing is deleted, what is broken is left alone, and `--diff` tells nothing.\n",
		Count(len(all), "mistake"))
	var rows [][]string
	for _, p := range all {
		rows = append(rows, []string{p.String()})
	}
	b.table(fmt.Sprintf("Mistakes (%d)", len(all)), []string{"mistake"}, rows, 55_000)
}

func matterCount(matters []forecast.ReasonGroup) (n int) {
	for _, m := range matters {
		n += len(m.Copies)
	}
	return n
}

// changeText says in one line what is declared otherwise.
func (d Difference) changeText() string {
	images, nodes := map[forecast.Change]int{}, map[forecast.Change]int{}
	generations, comes, goes := 0, 0, 0
	for _, one := range d.Images {
		images[one.Change]++
		comes += len(one.Added)
		goes += len(one.Removed)
		if one.Generation {
			generations++
			comes += len(one.After) - len(one.Added)
			goes += len(one.Before) - len(one.Removed)
		}
	}
	for _, one := range d.Nodes {
		nodes[one.Change]++
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
	if comes+goes > 0 {
		parts = append(parts, fmt.Sprintf("%s to come, %d to go", countCopies(comes), goes))
	}
	if len(parts) == 0 {
		return "The configurations declare the same."
	}
	return strings.Join(parts, "; ") + "."
}

// placeRows has a row for each image of which the disks change.
func (d Difference) placeRows() (rows [][]string) {
	for _, one := range d.Images {
		what := string(one.Change)
		switch {
		case one.Generation:
			what = fmt.Sprintf("new generation %s, was %s", one.UUID, one.OldUUID)
		case one.Change == "":
			what = "moves"
		case one.Change == forecast.Changed && len(one.Added)+len(one.Removed) == 0:
			what = "changed, stays where it is"
		}
		rows = append(rows, []string{one.Image, what, JoinMax(one.Before, maxNames), JoinMax(one.After, maxNames)})
	}
	return rows
}

func (d Difference) nodeRows() (rows [][]string) {
	for _, one := range d.Nodes {
		rows = append(rows, []string{one.Node, string(one.Change), JoinMax(one.Comes, maxNames), JoinMax(one.Goes, maxNames)})
	}
	return rows
}

func (d Difference) fieldRows() (rows [][]string) {
	for _, one := range d.Fields {
		rows = append(rows, []string{one.Field, one.Old, one.New})
	}
	return rows
}

var (
	fieldHeader = []string{"field", "was", "is"}
	placeHeader = []string{"image", "", "disks before", "disks after"}
	nodeHeader  = []string{"node", "", "images to come", "images to go"}
)

func (d Difference) tables(b *markdownPage, share int) {
	b.table(fmt.Sprintf("Fields that are declared otherwise (%d)", len(d.Fields)), fieldHeader, d.fieldRows(), share+5_000)
	b.table(fmt.Sprintf("Images that are declared otherwise, or elsewhere (%d)", len(d.Images)), placeHeader, d.placeRows(), share+2_500)
	b.table(fmt.Sprintf("Nodes that are declared otherwise, or have other images (%d)", len(d.Nodes)), nodeHeader, d.nodeRows(), share)
}

// stateless is what a difference cannot tell.
const stateless = "By the configurations alone, as if every disk could take every copy: what is there, and how many bytes move, is told with `--state`."

func (d Difference) markdown() string {
	b := &markdownPage{}
	fmt.Fprintf(b, "### %s\n%s\n", markdownCell.Replace(d.changeText()), stateless)
	d.tables(b, 2_000)
	return b.String()
}

// text is the difference for people; what it comes to is at the end.
func (d Difference) text() string {
	var b strings.Builder
	writeTable(&b, "Declared otherwise:", fieldHeader, d.fieldRows())
	writeTable(&b, "Images:", placeHeader, d.placeRows())
	writeTable(&b, "Nodes:", nodeHeader, d.nodeRows())
	fmt.Fprintln(&b, d.changeText())
	return b.String()
}

// WriteErrors writes the errors of a configuration as Markdown.
func WriteErrors(w io.Writer, errors []document.Problem) error {
	b := &markdownPage{}
	b.mistakes(errors)
	_, err := io.WriteString(w, b.String())
	return err
}
