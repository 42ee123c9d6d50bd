package peer

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// State is what a node tells of itself.
type State struct {
	Node string `json:"node"`
	// Config is the digest of its configuration, "" while anything of it is broken.
	Config string `json:"config"`
	// Clock is the wall time there, which the times of copies are by. It is not in
	// the ETag.
	Clock time.Time `json:"clock,omitzero"`
	Disks []Disk    `json:"disks"` // sorted by name
}

// Disk is one disk of a node.
type Disk struct {
	Name string `json:"name"`
	UUID string `json:"uuid"`
	// Problem says why the disk cannot be used. Nothing is known of its copies then.
	Problem string `json:"problem,omitempty"`
	// UsageUnknown says why it cannot be told what is used on the disk.
	UsageUnknown string `json:"unclear,omitempty"`
	Total        int64  `json:"total"` // not in the ETag, as Free
	Free         int64  `json:"free"`
	Copies       []Copy `json:"copies"` // sorted by name and uuid
}

// Copy is a copy on a disk, in any state, or what keeps a declared image from
// getting one there.
type Copy struct {
	Name           string      `json:"name"`
	UUID           string      `json:"uuid"`
	State          disk.State  `json:"state"`
	Message        string      `json:"message,omitempty"`
	Format         disk.Format `json:"format,omitempty"`
	Size           int64       `json:"size,omitempty"`
	VirtualSize    int64       `json:"virtualSize,omitempty"`
	RealSize       int64       `json:"realSize,omitempty"`
	SHA512         disk.Digest `json:"sha512,omitzero"`
	SHA256         disk.Digest `json:"sha256,omitzero"`
	ManifestDigest disk.Digest `json:"chunks,omitzero"` // of its manifest; zero: it has none
	Owned          bool        `json:"owned,omitempty"`
	UsedBy         string      `json:"using,omitempty"` // what uses it; "" nothing
	// Leaving: it was withdrawn, and may be gone the next moment.
	Leaving       bool      `json:"leaving,omitempty"`
	Verified      time.Time `json:"verified,omitzero"`
	Damaged       time.Time `json:"damaged,omitzero"`
	LastUsed      time.Time `json:"lastUsed,omitzero"`
	UnwantedSince time.Time `json:"unwantedSince,omitzero"`
	// Action is the action under way for it, "" when there is none.
	Action    string `json:"doing,omitempty"`
	PartBytes int64  `json:"partBytes,omitempty"` // not in the ETag, but for whether it is 0
	PartTotal int64  `json:"partTotal,omitempty"`
	// Pulled: the part came from other nodes, so that no first copy was begun with it.
	FromPeers bool `json:"pulled,omitempty"`
	// Rejection says why the disk takes no copy of a declared image.
	Rejection string `json:"refuses,omitempty"`
	// Later: it takes one as soon as another node has the first.
	RejectionTemporary bool     `json:"later,omitempty"`
	Failure            *Failure `json:"try,omitempty"` // what failed last
}

// Failure is a failure, and when the next attempt is.
type Failure struct {
	Action   string `json:"action"`
	Message  string `json:"message"`
	Attempts int    `json:"attempts"`
	// Since and Again are seconds from the answer to the first failure in a row
	// (not negative, in the past) and to the next attempt. They are not in the ETag.
	Since   float64 `json:"since"`
	RetryIn float64 `json:"again"`
	// Final: only another declaration helps.
	Final bool `json:"final,omitempty"`
	// Disk and Link say whose the trouble is, if not the source's.
	Disk bool `json:"disk,omitempty"`
	Link bool `json:"link,omitempty"`
}

// ID returns which image the copy is of.
func (c Copy) ID() disk.ID { return disk.ID{Name: c.Name, UUID: c.UUID} }
