package status

import "time"

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
