package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// The greatest sizes of the tables. A line counts what has no room.
const (
	maxPeers      = 10
	maxDisks      = 20
	maxDiskNames  = 2  // of copies that share a line
	maxCopyLines  = 12 // for one image
	maxPassedOver = 5  // reasons for one image
)

// WriteStatus writes a summary of a status as tables.
func WriteStatus(w io.Writer, s status.Status) error {
	var b lines
	b.linef("Node %s, as of %s", s.Node, s.Time.Format(time.RFC3339))
	writeConfig(&b, s.Config)
	writeDelivery(&b, "report", s.Report)
	writeDelivery(&b, "notify", s.Notify)
	writePeers(&b, s)
	writeDisks(&b, s)
	writeImages(&b, s)
	return b.writeTo(w)
}

func writeConfig(b *lines, c status.ConfigStatus) {
	revision := ""
	if c.Revision != "" {
		revision = fmt.Sprintf(", revision %.12s", c.Revision)
	}
	switch {
	case c.Fault != "":
		b.linef("Configuration: unusable (%s): %s", c.Allowed, c.Fault)
	case c.Digest == "":
		b.linef("Configuration: %s (%s)%s", Count(len(c.Errors), "error"), c.Allowed, revision)
	default:
		b.linef("Configuration: valid, digest %.12s%s", c.Digest, revision)
	}
	if !c.LoadingSince.IsZero() {
		b.linef("  a newer configuration has been loading since %s: nothing is deleted until it is applied", c.LoadingSince.Format(time.RFC3339))
	}
	if c.Suspended != nil && !c.Suspended.Over {
		b.linef("  everything is suspended %s", suspensionText(*c.Suspended))
	}
	if c.Skew != "" {
		b.linef("  warning: %s", c.Skew)
	}
	for _, p := range c.Errors {
		b.linef("  error: %s", p)
	}
	for _, p := range c.Warnings {
		b.linef("  warning: %s", p)
	}
}

// writeDelivery writes a warning if the server of a setting does not accept messages.
func writeDelivery(b *lines, setting string, d *status.Delivery) {
	if d != nil && d.Problem != "" {
		b.linef("  warning: settings.%s: %s has accepted nothing since %s: %s", setting, d.Server, d.ProblemSince.Format(time.RFC3339), d.Problem)
	}
}

// writePeers lists the peers. If there are many, it lists only the peers with a problem.
func writePeers(b *lines, s status.Status) {
	if len(s.Peers) == 0 {
		return
	}
	rows := [][]string{{"PEER", "LAST RESPONSE", "CONFIGURATION", "PROBLEM"}}
	good, bad := 0, 0
	for _, p := range s.Peers {
		isGood := p.Responds && p.Skew == status.SkewSame
		switch {
		case len(s.Peers) <= maxPeers, !isGood && len(rows) <= maxPeers:
			rows = append(rows, []string{p.Node, ago(s.Time, p.LastResponse), string(p.Skew), peerProblem(s.Time, p)})
		case isGood:
			good++
		default:
			bad++
		}
	}
	b.rows(rows)
	if good > 0 {
		b.linef("and %d more peers that respond and have the same configuration", good)
	}
	if bad > 0 {
		b.linef("and %d more peers with problems", bad)
	}
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return now.Sub(then).Round(time.Second).String() + " ago"
}

func peerProblem(now time.Time, p status.PeerStatus) string {
	if p.Responds || !p.LastResponse.IsZero() || p.UnreachableSince.IsZero() || !p.Queried {
		return clip(p.Problem)
	}
	return clip(fmt.Sprintf("no response for %v: %s", now.Sub(p.UnreachableSince).Round(time.Second), p.Problem))
}

// writeDisks lists the disks. If there are many, it lists only the disks of the daemon's node and the
// disks with a problem.
func writeDisks(b *lines, s status.Status) {
	rows := [][]string{{"DISK", "PATH", "FREE", "RESERVED", "TOTAL", "PROBLEM"}}
	others := 0
	var free, total int64 // of the others
	for _, d := range s.Disks {
		listed := d.Node == s.Node || len(d.Faults()) > 0 && len(rows) <= maxDisks
		if len(s.Disks) > maxDisks && !listed {
			others++
			free, total = free+d.Free, total+d.Total
			continue
		}
		rows = append(rows, []string{d.Node + "/" + d.Name, d.Path, spaceText(d, d.Free), Size(d.Reserved), spaceText(d, d.Total), diskProblem(d)})
	}
	b.rows(rows)
	if others > 0 {
		b.linef("and %d more disks with %s free of %s", others, Size(free), Size(total))
	}
}

// spaceText formats a size of a disk. The size is unknown until the disk has been read.
func spaceText(d status.DiskStatus, bytes int64) string {
	if !d.Observed || d.Total == 0 {
		return "?"
	}
	return Size(bytes)
}

func diskProblem(d status.DiskStatus) string {
	var parts []string
	for _, fault := range d.Faults() {
		parts = append(parts, clip(fault))
	}
	switch {
	case d.Unreachable != "" && d.Observed:
		parts = append(parts, unreachableNode)
	case !d.Observed:
		parts = append(parts, "not read yet")
	}
	return strings.Join(parts, "; ")
}

// unreachableNode is the message for the disks and copies of an unreachable node. The table of
// peers has the cause.
const unreachableNode = "its node is unreachable"

func writeImages(b *lines, s status.Status) {
	unreachable := map[string]bool{}
	for _, d := range s.Disks {
		unreachable[d.Node] = d.Unreachable != ""
	}
	rows := [][]string{{"IMAGE", "UUID", "READY", "DISK", "STATE", "PROGRESS", "SIZE", "MESSAGE"}}
	for _, image := range s.Images {
		rows = append(rows, imageStatusRows(image, unreachable)...)
	}
	b.rows(rows)
}

// imageStatusRows returns the rows of one image: its title, its message, its suspension, its
// copies, and the disks that are not eligible.
func imageStatusRows(image status.ImageStatus, unreachable map[string]bool) (rows [][]string) {
	ready := fmt.Sprintf("%d/%d", image.Ready, image.Desired)
	if !image.Declared {
		ready = "not declared"
	}
	add := func(disk, state, progress, size, message string) {
		rows = append(rows, []string{image.Name, image.UUID, ready, disk, state, progress, size, message})
	}
	if image.Title != "" {
		add("", "", "", "", "title: "+clip(image.Title))
	}
	if len(image.Copies) == 0 || image.Message != "" {
		add("", "", "", "", clip(image.Message))
	}
	if s := image.Suspended; s != nil && !s.Over {
		add("", "", "", "", "suspended "+clip(suspensionText(*s)))
	}
	lines, disks := groupCopies(image.Copies, unreachable)
	for i, l := range lines {
		if i == maxCopyLines-1 && len(lines) > maxCopyLines {
			add("", "", "", "", countStates(lines[i:], disks))
			break
		}
		add(someDisks(disks[l], len(disks[l])), string(l.state), l.progress, Size(l.size), l.message)
	}
	for _, p := range image.PassedOver[:min(len(image.PassedOver), maxPassedOver)] {
		add(someDisks(p.Disks, p.Count), "", "", "", "not eligible: "+clip(p.Reason))
	}
	if more := len(image.PassedOver) - maxPassedOver; more > 0 {
		add("", "", "", "", "not eligible for "+Count(more, "other reason"))
	}
	return rows
}

// copyLine is a line of the table. Equal copies share a line.
type copyLine struct {
	state    model.State
	progress string // "" means that the line shows no progress
	size     int64
	message  string
}

// groupCopies returns the different lines, the best state first, and the disks of each line. If an
// image has many copies, the lines of copies in progress show no progress, so that these copies
// share a line.
func groupCopies(copies []status.CopyStatus, unreachable map[string]bool) (lines []copyLine, disks map[copyLine][]string) {
	disks = map[copyLine][]string{}
	for _, c := range copies {
		if c.Absent() && c.Rejection != "" {
			continue // a line says that its disk is not eligible
		}
		l := copyLine{state: c.State, size: max(c.Size, c.Total), message: clip(c.Summary())}
		if len(copies) <= maxCopyLines || c.State != model.InProgress {
			l.progress = fmt.Sprintf("%d%%", c.Progress)
		}
		if unreachable[c.Node] {
			l.message = unreachableNode
			if c.Observed != nil {
				l.message += fmt.Sprintf("; it was %s", c.Observed.State)
			}
		}
		if _, known := disks[l]; !known {
			lines = append(lines, l)
		}
		disks[l] = append(disks[l], c.DiskName())
	}
	slices.SortStableFunc(lines, func(a, b copyLine) int {
		return status.CompareStates(a.state, b.state)
	})
	return lines, disks
}

// countStates counts the copies without a line of their own.
func countStates(lines []copyLine, disks map[copyLine][]string) string {
	byState := map[model.State]int{}
	for _, l := range lines {
		byState[l.state] += len(disks[l])
	}
	var parts []string
	for _, state := range status.StateOrder {
		if n := byState[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return "and more copies: " + strings.Join(parts, ", ")
}

// someDisks lists the first of n disks, and counts the others. The slice names may have fewer than n names.
func someDisks(names []string, n int) string {
	listed := names[:min(len(names), maxDiskNames)]
	text := strings.Join(listed, ", ")
	if more := n - len(listed); more > 0 {
		text = strings.TrimSpace(fmt.Sprintf("%s +%d", text, more))
	}
	return text
}
