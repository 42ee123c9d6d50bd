package peer

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// State is the state that a node publishes about itself. Its times are times of the node's clock.
// Nodes of different versions exchange it: fields may be added, and a reader ignores unknown fields.
type State struct {
	Node string `json:"node"`
	// Config is the digest of the node's configuration. It is "" while any part of the configuration
	// is invalid, or if the node is observe-only.
	Config string `json:"config"`
	// Clock is the wall time of the node. It does not change the ETag.
	Clock time.Time `json:"clock,omitzero"`
	// Mark is the name of the mark that the node was asked for and has looked for in the folders of the copies. A node of
	// an earlier version does not look for any.
	Mark  string `json:"mark,omitempty"`
	Disks []Disk `json:"disks"` // sorted by name

	// Partial and Omitted say what the reader left out because its Scope does not need it: Partial is
	// true if there are disks that are not declared, or more copies than maxIdle that nobody needs.
	// Omitted is the number of copies beyond Scope.maxOthers: orphans and copies of other generations
	// about which the reader knows nothing.
	Partial bool `json:"-"`
	Omitted int  `json:"-"`
}

// Disk is one disk of a node.
type Disk struct {
	Name string `json:"name"`
	UUID string `json:"uuid"` // diskUUID of longhorn-disk.cfg
	// Problem is the reason why the disk cannot be used; "" if it can be used. If it is set, the
	// copies of the disk are unknown: Copies is empty, which does not mean that there are none.
	Problem string `json:"problem,omitempty"`
	// ReadOnly: no file of the disk can be changed. Its copies can be read.
	ReadOnly bool `json:"readOnly,omitempty"`
	// UsageUnknown is the reason why it cannot be determined which copies the replicas on the disk
	// use; "" if it can be determined. If it is set, all copies count as in use.
	UsageUnknown string `json:"unclear,omitempty"`
	Total        int64  `json:"total"`  // bytes; does not change the ETag
	Free         int64  `json:"free"`   // bytes; does not change the ETag
	Copies       []Copy `json:"copies"` // sorted by name and uuid
}

// Copy is one copy on a disk, in any state: the fields of disk.Copy, and fields that the manager of
// the node adds. A declared image without a file on the disk also has a Copy if an action for it runs
// or failed on this disk, if the disk rejects it, or if replicas on the disk need it. The State of this Copy is pending. Some JSON names
// differ from the names of the fields (Action is "doing"). They are part of the protocol and do not change.
type Copy struct {
	disk.Copy        // the fields with JSON tags
	UsedBy    string `json:"using,omitempty"` // why the copy is in use; "": it is not in use
	// Demand describes the replicas on the disk that name the image, whether it is ready there or not; "": none does. They
	// have named it since DemandSince; zero: not known. An image that is not declared has a Copy, too.
	Demand      string    `json:"demand,omitempty"`
	DemandSince time.Time `json:"demandSince,omitzero"`
	// Leaving: the copy is withdrawn and may be deleted at any time.
	Leaving bool `json:"leaving,omitempty"`
	// Mark shows that the node has seen the mark State.Mark in the folder of the copy. It depends on the secret of the mark
	// (disk.Mark) and on the node.
	Mark string `json:"mark,omitempty"`
	// Action is the running action for this copy; "": no action runs.
	Action string `json:"doing,omitempty"`
	// FromPeers: the partial file was synced from peers. It is not a first copy.
	FromPeers bool `json:"pulled,omitempty"`
	// Rejection is the reason why the disk rejects a copy of the declared image; "": it accepts one.
	Rejection string `json:"refuses,omitempty"`
	// RejectionTemporary: the disk accepts a copy when another node has the first copy.
	RejectionTemporary bool     `json:"later,omitempty"`
	Failure            *Failure `json:"try,omitempty"` // the last failure; nil: no failure
	// Reason says for people why the node does nothing for the copy now; "": it acts, or nothing is to be
	// done. ReasonCode is its code, a plan.Code. The text has sizes that change all the time, so that only
	// the code changes the ETag.
	Reason     string `json:"why,omitempty"`
	ReasonCode string `json:"whyCode,omitempty"`
}

// Failure is the last failure of an action, and the time of the next attempt.
type Failure struct {
	Action   string `json:"action"`
	Message  string `json:"message"`
	Attempts int    `json:"attempts"` // consecutive failed attempts
	// Since and RetryIn are seconds relative to the response: to the first of the consecutive failures
	// (0 or negative) and to the next attempt. They do not change the ETag. Relative times need no
	// synchronized clocks.
	Since   float64 `json:"since"`
	RetryIn float64 `json:"again"`
	// Final: only another declaration helps, as far as the node knows. RetryIn is then 0, or the time of
	// one of the rare attempts that find out whether the source has changed.
	Final bool `json:"final,omitempty"`
	// Disk and Link name the cause of the failure if it is not the source: the disk, or this node's
	// connection to the source.
	Disk bool `json:"disk,omitempty"`
	Link bool `json:"link,omitempty"`
}
