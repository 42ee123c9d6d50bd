package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// How much of a large cluster the table has; the rest is counted.
const (
	mostPeers  = 10
	mostDisks  = 20
	mostNames  = 2   // of disks that share a line
	mostCopies = 12  // lines of copies for an image
	mostPassed = 5   // for which disks were passed over for an image
	mostText   = 400 // letters of a message: two checksums and some words
)

// WriteStatus writes a status for people.
func WriteStatus(w io.Writer, s status.Status) error {
	fmt.Fprintf(w, "Node %s, as of %s\n", s.Node, s.Time.Format(time.RFC3339))
	writeConfigStatus(w, s.Config)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, part := range []func(io.Writer, status.Status){writePeers, writeDisks, writeImages} {
		part(t, s)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func writeConfigStatus(w io.Writer, c status.ConfigStatus) {
	of := ""
	if c.Revision != "" {
		of = fmt.Sprintf(", revision %.12s", c.Revision)
	}
	switch {
	case c.Fault != "":
		fmt.Fprintf(w, "Configuration: cannot be used (%s): %s\n", c.Allowed, c.Fault)
	case c.Digest == "":
		fmt.Fprintf(w, "Configuration: %s (%s)%s\n", Count(len(c.Errors), "error"), c.Allowed, of)
	default:
		fmt.Fprintf(w, "Configuration: valid, digest %.12s%s\n", c.Digest, of)
	}
	if c.Suspended != nil && !c.Suspended.Over {
		fmt.Fprintf(w, "  everything is suspended %s\n", suspensionText(*c.Suspended))
	}
	if c.Skew != "" {
		fmt.Fprintf(w, "  warning: %s\n", c.Skew)
	}
	for _, p := range c.Errors {
		fmt.Fprintf(w, "  error: %s\n", p)
	}
	for _, p := range c.Warnings {
		fmt.Fprintf(w, "  warning: %s\n", p)
	}
}

// writePeers lists the other nodes; of many only those that something is wrong with.
func writePeers(w io.Writer, s status.Status) {
	if len(s.Peers) == 0 {
		return
	}
	fmt.Fprintln(w, "\nPEER\tLAST ANSWER\tCONFIGURATION\tPROBLEM")
	listed, well := 0, 0
	for _, p := range s.Peers {
		fine := p.Answers && p.Skew == status.SkewSame
		if len(s.Peers) > mostPeers && (fine || listed == mostPeers) {
			if fine {
				well++
			}
			continue
		}
		listed++
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Node, ago(s.Time, p.LastAnswer), p.Skew, problemOf(s.Time, p))
	}
	if well > 0 {
		fmt.Fprintf(w, "and %d more that answer and have the same configuration\n", well)
	}
	if more := len(s.Peers) - listed - well; more > 0 {
		fmt.Fprintf(w, "and %d more that do not\n", more)
	}
}

// known is a size of a disk, if anything is known of it.
func known(d status.DiskStatus, bytes int64) string {
	if !d.Seen || d.Total == 0 {
		return "?"
	}
	return Size(bytes)
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return now.Sub(then).Round(time.Second).String() + " ago"
}

func problemOf(now time.Time, p status.PeerStatus) string {
	if p.Answers || !p.LastAnswer.IsZero() || p.SilentSince.IsZero() || !p.Asked {
		return clip(p.Problem)
	}
	return clip(fmt.Sprintf("no answer for %v: %s", now.Sub(p.SilentSince).Round(time.Second), p.Problem))
}

// writeDisks lists the disks; of many those of the asked node, and those that
// something is wrong with.
func writeDisks(w io.Writer, s status.Status) {
	fmt.Fprintln(w, "\nDISK\tPATH\tFREE\tRESERVED\tTOTAL\tPROBLEM")
	listed := 0
	var rest status.DiskStatus
	for _, d := range s.Disks {
		notable := d.Node == s.Node || (d.Problem != "" || d.Unclear != "") && listed < mostDisks
		if len(s.Disks) > mostDisks && !notable {
			rest.Free, rest.Total = rest.Free+d.Free, rest.Total+d.Total
			continue
		}
		listed++
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\t%s\t%s\n", d.Node, d.Disk, d.Path, known(d, d.Free), Size(d.Reserved), known(d, d.Total), diskProblem(d))
	}
	if more := len(s.Disks) - listed; more > 0 {
		fmt.Fprintf(w, "and %d more with %s free of %s\n", more, Size(rest.Free), Size(rest.Total))
	}
}

func diskProblem(d status.DiskStatus) string {
	var parts []string
	for _, part := range []string{d.Problem, d.Unclear} {
		if part != "" {
			parts = append(parts, clip(part))
		}
	}
	switch {
	case d.Silent != "" && d.Seen:
		parts = append(parts, silentNode)
	case !d.Seen:
		parts = append(parts, "nothing is known of it yet")
	}
	return strings.Join(parts, "; ")
}

// silentNode stands for what is said of each silent node in another place.
const silentNode = "its node does not answer"

// copyLine is a line of the table: a copy, or several that are alike.
type copyLine struct {
	state    disk.State
	progress int // -1: of several copies, each with its own
	size     int64
	remark   string
}

func writeImages(w io.Writer, s status.Status) {
	silent := map[string]bool{}
	for _, d := range s.Disks {
		silent[d.Node] = d.Silent != ""
	}
	fmt.Fprintln(w, "\nIMAGE\tUUID\tREADY\tDISK\tSTATE\tPROGRESS\tSIZE\tMESSAGE")
	for _, image := range s.Images {
		writeImageStatus(w, image, silent)
	}
}

func writeImageStatus(w io.Writer, image status.ImageStatus, silent map[string]bool) {
	ready := fmt.Sprintf("%d/%d", image.Ready, image.Wanted)
	if !image.Declared {
		ready = "not declared"
	}
	line := func(disk, state, progress, size, message string) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", image.Name, image.UUID, ready, disk, state, progress, size, message)
	}
	if len(image.Copies) == 0 || image.Message != "" {
		line("", "", "", "", clip(image.Message))
	}
	if s := image.Suspended; s != nil && !s.Over {
		line("", "", "", "", "suspended "+clip(suspensionText(*s)))
	}
	lines, disks := copyLines(image.Copies, silent)
	for i, l := range lines {
		if i == mostCopies-1 && len(lines) > mostCopies {
			line("", "", "", "", restOf(lines[i:], disks))
			break
		}
		line(someOf(disks[l], len(disks[l])), string(l.state), percentText(l.progress), Size(l.size), l.remark)
	}
	for _, p := range image.PassedOver[:min(len(image.PassedOver), mostPassed)] {
		if alreadySaid(image.Message, p) {
			continue
		}
		line(someOf(p.Disks, p.Count), "", "", "", "passed over: "+clip(p.Why))
	}
	if more := len(image.PassedOver) - mostPassed; more > 0 {
		line("", "", "", "", "passed over: for "+Count(more, "other reason"))
	}
}

// alreadySaid reports whether a message names the disks that were passed over, and says why.
func alreadySaid(message string, p status.PassedOver) bool {
	missing := func(disk string) bool { return !strings.Contains(message, disk) }
	return p.Count == len(p.Disks) && strings.Contains(message, p.Why) && !slices.ContainsFunc(p.Disks, missing)
}

func percentText(n int) string {
	if n < 0 {
		return ""
	}
	return fmt.Sprintf("%d %%", n)
}

// copyLines groups copies that are alike, the best state first. Of many copies it does
// not tell how far each is.
func copyLines(copies []status.CopyStatus, silent map[string]bool) (lines []copyLine, disks map[copyLine][]string) {
	disks = map[copyLine][]string{}
	for _, c := range copies {
		if c.Absent() && c.Refuses != "" {
			continue // it is among those that were passed over
		}
		l := copyLine{c.State, c.Progress, max(c.Size, c.Total), clip(CopyMessage(c))}
		if len(copies) > mostCopies && c.State == disk.InProgress {
			l.progress = -1
		}
		if silent[c.Node] {
			l.remark = silentNode
			if c.Found != nil {
				l.remark += fmt.Sprintf("; it was %s then", c.Found.State)
			}
		}
		if _, there := disks[l]; !there {
			lines = append(lines, l)
		}
		disks[l] = append(disks[l], DiskName(c))
	}
	slices.SortStableFunc(lines, func(a, b copyLine) int {
		return cmp.Compare(slices.Index(stateOrder, a.state), slices.Index(stateOrder, b.state))
	})
	return lines, disks
}

// restOf counts the copies that have no line of their own.
func restOf(lines []copyLine, disks map[copyLine][]string) string {
	byState := map[disk.State]int{}
	for _, l := range lines {
		byState[l.state] += len(disks[l])
	}
	var parts []string
	for _, state := range stateOrder {
		if n := byState[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return "and more copies: " + strings.Join(parts, ", ")
}

// someOf names the first of n disks.
func someOf(names []string, n int) string {
	shown := names[:min(len(names), mostNames)]
	text := strings.Join(shown, ", ")
	if more := n - len(shown); more > 0 {
		text = strings.TrimSpace(fmt.Sprintf("%s +%d", text, more))
	}
	return text
}

// CopyMessage says what is to be said of a copy, and until when it waits.
func CopyMessage(c status.CopyStatus) string {
	parts := []string{}
	if c.Message != "" {
		parts = append(parts, c.Message)
	}
	if !strings.Contains(c.Message, c.InUse) { // the message may be that it is in use
		parts = append(parts, c.InUse)
	}
	if !c.Until.IsZero() {
		parts = append(parts, "until "+c.Until.Format(time.RFC3339))
	}
	return strings.Join(parts, "; ")
}
