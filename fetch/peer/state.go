package peer

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// State is what a node publishes about itself. Times are by the clock of that node.
// Nodes of different versions exchange it: fields may be added, and a reader ignores
// fields that it does not know.
type State struct {
	Node string `json:"node"`
	// Config is the digest of the node's configuration; "" while any part of the
	// configuration is invalid, or the node only observes.
	Config string `json:"config"`
	// Clock is the wall time of the node. It does not count for the ETag.
	Clock time.Time `json:"clock,omitzero"`
	Disks []Disk    `json:"disks"` // sorted by name
}

// Disk is one disk of a node.
type Disk struct {
	Name string `json:"name"`
	UUID string `json:"uuid"` // diskUUID of longhorn-disk.cfg
	// Problem says why the disk cannot be used; "" if it can. With a problem nothing is
	// known about its copies: Copies is empty, which does not mean that there are none.
	Problem string `json:"problem,omitempty"`
	// UsageUnknown says why it cannot be determined which copies the replicas on the
	// disk use; "" if it can. All copies then count as in use.
	UsageUnknown string `json:"unclear,omitempty"`
	Total        int64  `json:"total"`  // bytes; does not count for the ETag
	Free         int64  `json:"free"`   // bytes; does not count for the ETag
	Copies       []Copy `json:"copies"` // sorted by name and uuid
}

// Copy is one copy on a disk, in any state: what the disk knows about it, and what the
// manager of the node adds. A declared image without a file on the disk has one too if an
// action for it runs or failed there, or the disk rejects it: its State is then pending.
type Copy struct {
	disk.Copy        // the fields with JSON tags
	UsedBy    string `json:"using,omitempty"` // what uses the copy; "": nothing
	// Leaving: the copy is withdrawn and may be deleted at any moment.
	Leaving bool `json:"leaving,omitempty"`
	// Action is the running action for this copy; "": none runs.
	Action string `json:"doing,omitempty"`
	// FromPeers: the partial file was synced from peers. It is not a started first copy.
	FromPeers bool `json:"pulled,omitempty"`
	// Rejection says why the disk rejects a copy of the declared image; "": it does not.
	Rejection string `json:"refuses,omitempty"`
	// RejectionTemporary: the disk accepts a copy as soon as another node has the first.
	RejectionTemporary bool     `json:"later,omitempty"`
	Failure            *Failure `json:"try,omitempty"` // the last failure; nil: none
}

// Failure is the last failure of an action, and when the next attempt is due.
type Failure struct {
	Action   string `json:"action"`
	Message  string `json:"message"`
	Attempts int    `json:"attempts"` // consecutive failed ones
	// Since and RetryIn are seconds relative to the response: to the first of the
	// consecutive failures (0 or negative) and to the next attempt. They do not count for
	// the ETag. Relative times need no synchronized clocks.
	Since   float64 `json:"since"`
	RetryIn float64 `json:"again"`
	// Final: only a change of the declaration helps.
	Final bool `json:"final,omitempty"`
	// Disk and Link name the cause if it is not the source: the disk, or this node's
	// connection to the source.
	Disk bool `json:"disk,omitempty"`
	Link bool `json:"link,omitempty"`
}
