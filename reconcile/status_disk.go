package reconcile

import (
	"cmp"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// DiskStatus is one disk of any node. Sizes are in bytes.
type DiskStatus struct {
	Node string `json:"node"`
	Disk string `json:"disk"`
	Path string `json:"path"`
	UUID string `json:"uuid"`
	// Seen: something is known of it. Of a disk that is only declared nothing is, and
	// what is here of it are zeros.
	Seen bool `json:"seen"`
	// Problem says why it cannot be used.
	Problem string `json:"problem,omitempty"`
	// ProblemSince is since when, for all that is known.
	ProblemSince time.Time `json:"problemSince,omitzero"`
	// Unclear says why it cannot be told what is used on it; all its copies then
	// count as used.
	Unclear string `json:"unclear,omitempty"`
	// Silent says that its node does not answer: what is here is what that said last.
	Silent string `json:"silent,omitempty"`
	// ClockStepped: the wall clock was set since the times beside its copies were
	// written, so that intervals that go by it begin anew.
	ClockStepped bool     `json:"clockStepped,omitempty"`
	Total        int64    `json:"total"`
	Free         int64    `json:"free"`
	Reserved     int64    `json:"reserved"`
	Foreign      []string `json:"foreign"` // not ours, left alone; only of this node's disks
}

// disks are those that are declared or were seen.
func (v View) disks() map[schema.DiskRef]bool {
	refs := map[schema.DiskRef]bool{}
	for node, declared := range v.Desired.Config.Nodes {
		for name := range declared.Disks {
			refs[schema.DiskRef{Node: node, Disk: name}] = true
		}
	}
	for ref := range v.Observed.Disks {
		refs[ref] = true
	}
	return refs
}

func (v View) diskStatus(ref schema.DiskRef) DiskStatus {
	seen, known := v.Observed.Disks[ref]
	declared, _ := v.Desired.disk(ref)
	var since time.Time
	if seen.Away > 0 {
		since = v.Observed.Now.Add(-seen.Away)
	}
	return DiskStatus{
		ProblemSince: since,
		Node:         ref.Node, Disk: ref.Disk, Path: cmp.Or(seen.Path, declared.Path), UUID: seen.UUID,
		Seen: known, Problem: seen.Problem, Unclear: seen.Unclear, Silent: v.silence(ref.Node), ClockStepped: seen.ClockStepped,
		Total: seen.Space.Total, Free: seen.Space.Free, Reserved: declared.StorageReserved,
		Foreign: append([]string{}, seen.Foreign...),
	}
}
