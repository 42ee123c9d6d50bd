package plan

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// shortage reports that fewer disks can take a copy than are desired. It is blocked only when
// something is wrong with a disk: otherwise nothing would be done about it, and the plan
// counts as empty.
func (p imagePlanner) shortage() Action {
	none := p.placement.ranked.len() == 0
	reason := because(CodeTooFewDisks, "no disk can take %d of %d copies", p.placement.missing, p.placement.copies)
	if none {
		reason = p.noRankedDisk()
	}
	disksByReason, defective := map[string][]string{}, len(p.placement.targets) == 0 || none
	for ref, r := range p.placement.rejected {
		if p.matches(ref) {
			disksByReason[r.Text] = append(disksByReason[r.Text], ref.String())
			defective = defective || r.Severity == Defective
		}
	}
	var details []string
	for text, disks := range disksByReason {
		slices.Sort(disks)
		details = append(details, fmt.Sprintf("%s: %s", JoinMax(disks, ", ", 5), text))
	}
	if len(details) > 0 {
		slices.Sort(details)
		reason = reason.with(reason.Code, " (%s)", strings.Join(details, "; "))
	}
	a := p.blocked(schema.DiskRef{}, reason)
	if !defective {
		a.Op = Wait
	}
	return a
}

// noRankedDisk returns why no disk is ranked.
func (p imagePlanner) noRankedDisk() Reason {
	var evicted []string
	for name, node := range p.ix.desired.Config.Nodes {
		for d, declared := range node.Disks { // a matching disk without a rank is evicted
			if hasAll(node.Tags, p.image.NodeSelector) && hasAll(declared.Tags, p.image.DiskSelector) {
				evicted = append(evicted, schema.DiskRef{Node: name, Disk: d}.String())
			}
		}
	}
	if len(evicted) == 0 {
		return Reason{CodeNoMatchingDisk, "no disk matches the selectors"}
	}
	slices.Sort(evicted)
	return because(CodeAllEvicted, "eviction is requested for every disk that matches (%s)", JoinMax(evicted, ", ", 5))
}

// rejectedNamedDisk reports that a disk of this node takes no copy although the image names it.
// shortage and the eviction of a copy report some of these disks already.
func (p imagePlanner) rejectedNamedDisk(ref schema.DiskRef) (a Action, rejected bool) {
	r, rejected := p.placement.rejected[ref]
	reported := p.placement.missing > 0 && p.matches(ref) || p.ix.copyAt(p.on(ref)).Owned && r.Severity == Intended
	if !rejected || reported || !p.ix.desired.Owns(ref) {
		return Action{}, false
	}
	a = p.blocked(ref, because(CodeNamedDisk, "the image names this disk, but %s", r.Text))
	if r.Severity == Intended {
		a.Op = Wait
	}
	return a, true
}
