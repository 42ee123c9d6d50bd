package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// copyLine is a line of the table: a copy, or several that are alike.
type copyLine struct {
	state    disk.State
	progress int // -1: of several copies, each with its own
	size     int64
	remark   string
}

func writeImages(w io.Writer, s reconcile.Status) {
	silent := map[string]bool{}
	for _, d := range s.Disks {
		silent[d.Node] = d.Silent != ""
	}
	fmt.Fprintln(w, "\nIMAGE\tUUID\tREADY\tDISK\tSTATE\tPROGRESS\tSIZE\tMESSAGE")
	for _, image := range s.Images {
		writeImageStatus(w, image, silent)
	}
}

func writeImageStatus(w io.Writer, image reconcile.ImageStatus, silent map[string]bool) {
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
		line(someOf(disks[l], len(disks[l])), string(l.state), percentText(l.progress), size(l.size), l.remark)
	}
	for _, p := range image.PassedOver[:min(len(image.PassedOver), mostPassed)] {
		if alreadySaid(image.Message, p) {
			continue
		}
		line(someOf(p.Disks, p.Count), "", "", "", "passed over: "+clip(p.Why))
	}
	if more := len(image.PassedOver) - mostPassed; more > 0 {
		line("", "", "", "", "passed over: for "+count(more, "other reason"))
	}
}

// alreadySaid reports whether a message names the disks that were passed over, and says why.
func alreadySaid(message string, p reconcile.PassedOver) bool {
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
func copyLines(copies []reconcile.CopyStatus, silent map[string]bool) (lines []copyLine, disks map[copyLine][]string) {
	disks = map[copyLine][]string{}
	for _, c := range copies {
		if c.Absent() && c.Refuses != "" {
			continue // it is among those that were passed over
		}
		l := copyLine{c.State, c.Progress, max(c.Size, c.Total), clip(remark(c))}
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
		disks[l] = append(disks[l], place(c))
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

// remark says what is to be said of a copy, and until when it waits.
func remark(c reconcile.CopyStatus) string {
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
