package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/seed-26586806/backing-image-manager/reconcile"
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

// writeStatus writes a status for people.
func writeStatus(w io.Writer, s reconcile.Status) error {
	fmt.Fprintf(w, "Node %s, as of %s\n", s.Node, s.Time.Format(time.RFC3339))
	writeConfigStatus(w, s.Config)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, part := range []func(io.Writer, reconcile.Status){writePeers, writeDisks, writeImages} {
		part(t, s)
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func writeConfigStatus(w io.Writer, c reconcile.ConfigStatus) {
	of := ""
	if c.Revision != "" {
		of = fmt.Sprintf(", revision %.12s", c.Revision)
	}
	switch {
	case c.Fault != "":
		fmt.Fprintf(w, "Configuration: cannot be used (%s): %s\n", c.Allowed, c.Fault)
	case c.Digest == "":
		fmt.Fprintf(w, "Configuration: %s (%s)%s\n", count(len(c.Errors), "error"), c.Allowed, of)
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
func writePeers(w io.Writer, s reconcile.Status) {
	if len(s.Peers) == 0 {
		return
	}
	fmt.Fprintln(w, "\nPEER\tLAST ANSWER\tCONFIGURATION\tPROBLEM")
	listed, well := 0, 0
	for _, p := range s.Peers {
		fine := p.Answers && p.Skew == reconcile.SkewSame
		if len(s.Peers) > mostPeers && (fine || listed == mostPeers) {
			well += int(oneIf(fine))
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
func known(d reconcile.DiskStatus, bytes int64) string {
	if !d.Seen || d.Total == 0 {
		return "?"
	}
	return size(bytes)
}

func ago(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return now.Sub(then).Round(time.Second).String() + " ago"
}

func problemOf(now time.Time, p reconcile.PeerStatus) string {
	if p.Answers || !p.LastAnswer.IsZero() || p.SilentSince.IsZero() || !p.Asked {
		return clip(p.Problem)
	}
	return clip(fmt.Sprintf("no answer for %v: %s", now.Sub(p.SilentSince).Round(time.Second), p.Problem))
}

// writeDisks lists the disks; of many those of the asked node, and those that
// something is wrong with.
func writeDisks(w io.Writer, s reconcile.Status) {
	fmt.Fprintln(w, "\nDISK\tPATH\tFREE\tRESERVED\tTOTAL\tPROBLEM")
	listed := 0
	var rest reconcile.DiskStatus
	for _, d := range s.Disks {
		notable := d.Node == s.Node || (d.Problem != "" || d.Unclear != "") && listed < mostDisks
		if len(s.Disks) > mostDisks && !notable {
			rest.Free, rest.Total = rest.Free+d.Free, rest.Total+d.Total
			continue
		}
		listed++
		fmt.Fprintf(w, "%s/%s\t%s\t%s\t%s\t%s\t%s\n", d.Node, d.Disk, d.Path, known(d, d.Free), size(d.Reserved), known(d, d.Total), diskProblem(d))
	}
	if more := len(s.Disks) - listed; more > 0 {
		fmt.Fprintf(w, "and %d more with %s free of %s\n", more, size(rest.Free), size(rest.Total))
	}
}

func diskProblem(d reconcile.DiskStatus) string {
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

// clip shortens a text to what a line of a table may have.
func clip(text string) string {
	letters := []rune(oneLine(text))
	if len(letters) <= mostText {
		return string(letters)
	}
	return string(letters[:mostText]) + "…"
}

// size writes bytes for people; unknown ones are a question mark.
func size(bytes int64) string {
	if bytes < 0 {
		return "?"
	}
	return humanize.IBytes(uint64(bytes))
}
