package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// trace has the last events of a run.
type trace struct {
	lines []string
	next  int
}

// logf adds an event to the trace, if there is one. node is "" for an event of no node.
func (c *cluster) logf(node, format string, args ...any) {
	if c.trace == nil {
		return
	}
	at := startTime.Add(c.now).Sub(startTime).Truncate(time.Millisecond)
	line := fmt.Sprintf("%12s %-7s %s", at, node, fmt.Sprintf(format, args...))
	if len(c.trace.lines) < *clusterLines {
		c.trace.lines = append(c.trace.lines, line)
		return
	}
	c.trace.lines[c.trace.next%*clusterLines] = line
	c.trace.next++
}

// String returns the events, the oldest first.
func (s *trace) String() string {
	at := s.next % max(1, len(s.lines))
	return strings.Join(append(append([]string{}, s.lines[at:]...), s.lines[:at]...), "\n")
}

// String returns the published state as text for the trace.
func (s *publication) String() string {
	if s == nil {
		return "nothing new"
	}
	return formatState(s.state)
}

// formatState returns a published state on one line.
func formatState(s model.Node) string {
	text := "configuration " + s.ConfigDigest
	for _, name := range slices.Sorted(maps.Keys(s.Disks)) {
		one := s.Disks[name]
		text += ", " + name + one.Problem
		for _, id := range slices.SortedFunc(maps.Keys(one.Copies), ident.ID.Compare) {
			v := one.Copies[id]
			text += fmt.Sprintf(" %s %s%s%s%s", v.ID, v.State, textIf(v.Leaving, " leaving"), textIf(v.UsedBy != "", " used"), textIf(v.Job != "", " "+string(v.Job)))
		}
	}
	return text
}

// describe returns the disks, plans and images of the cluster as text.
func (c *cluster) describe() string {
	var b strings.Builder
	for _, ref := range c.diskRefs() {
		d := c.disks[ref]
		fmt.Fprintf(&b, "%s %s attached=%v", ref, d.UUID, d.Attached)
		for _, id := range d.IDs() {
			s := d.Copies[id]
			fmt.Fprintf(&b, "; %s file %q recorded %q partial %d users %d failure %q changed %v owned %v", id, s.File, s.Recorded, s.Partial, s.Users, s.Failure, s.Changed, s.Owned)
		}
		b.WriteString("\n")
	}
	for _, name := range c.names {
		m := c.nodes[name]
		fmt.Fprintf(&b, "%s up=%v rounds=%d digest=%s\n", name, m.up, m.rounds, m.observedDigest)
		for _, a := range m.plan.Actions {
			fmt.Fprintf(&b, "    %s %s: %s (until %s)\n", a.Op, a.CopyRef(), a.Text, a.Until)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.latest().config.Images)) {
		image := c.latest().config.Images[name]
		fmt.Fprintf(&b, "%s copies %d all %v checksum %.8s named %v ranked %v\n", image.ID, image.Copies, image.AllDisks, image.Checksum, image.Disks, c.rankedDisks(c.latest(), image))
	}
	return b.String()
}
