package forecast

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Fleet is what the plan of all nodes comes to, what follows from it by itself included:
// what waits for a clean-up interval, or for the first copy. It is a stable interface:
// fields are added, and none changes its meaning.
type Fleet struct {
	State   FleetState      `json:"state"`
	Risk    Risk            `json:"risk"`
	Traffic Traffic         `json:"traffic"`
	Images  []ImageForecast `json:"images"` // of which a copy is there or wanted, sorted
	Disks   []DiskForecast  `json:"disks"`  // declared ones, sorted
	// Deferred are deletions that do not come about by themselves, Blocked is what a person
	// has to change, by reason.
	Deferred []ReasonGroup `json:"held"`
	Blocked  []ReasonGroup `json:"blocked"`
}

// FleetState tells how much is known of a fleet.
type FleetState struct {
	Time        time.Time `json:"time"` // of the newest status
	Nodes       int       `json:"nodes"`
	Unreachable []string  `json:"silent"` // declared nodes of which nothing is known, or that did not answer
}

// CopyStats is a number of copies, and what they take on disks.
type CopyStats struct {
	Copies int   `json:"copies"`
	Bytes  int64 `json:"bytes"`
}

func (a *CopyStats) add(bytes int64) {
	a.Copies++
	a.Bytes += max(0, bytes)
}

// Risk is what somebody who approves a change should know.
type Risk struct {
	Removes      CopyStats `json:"removes"` // copies that are deleted at once
	RemovesLater CopyStats `json:"removesLater"`
	Evicts       CopyStats `json:"evicts"` // copies that are deleted when others are there instead
	// LosesAll are images that have ready copies and will have none.
	LosesAll []string `json:"losesAll"`
	// BelowCopies are images that will have fewer copies than they should have.
	BelowCopies []Shortfall `json:"belowCopies"`
	// BelowReserve are disks, as NODE/DISK, that will have less free than is reserved.
	BelowReserve []string `json:"belowReserve"`
	Deferred     int      `json:"held"`
	Blocked      int      `json:"blocked"`
}

// Shortfall is an image that has fewer copies than it should have.
type Shortfall struct {
	Image   string `json:"image"`
	Desired int    `json:"wanted"`
	After   int    `json:"after"`
}

// Traffic is what crosses networks and disks.
type Traffic struct {
	Upstreams TransferStats `json:"origins"` // first copies: what others than the nodes have to send
	Peers     TransferStats `json:"peers"`   // from node to node
	Local     TransferStats `json:"local"`   // from disk to disk of one node
	Backups   TransferStats `json:"backups"`
}

// TransferStats is a number of transfers.
type TransferStats struct {
	Transfers int   `json:"transfers"`
	Bytes     int64 `json:"bytes"`   // as far as they are known
	Unknown   int   `json:"unknown"` // transfers of which the size is not known
}

func (f *TransferStats) add(bytes int64) {
	f.Transfers++
	if bytes == plan.UnknownBytes {
		f.Unknown++
		return
	}
	f.Bytes += bytes
}

// ImageForecast is one generation of an image on all nodes.
type ImageForecast struct {
	Image    string         `json:"image"`
	UUID     string         `json:"uuid"`
	Declared bool           `json:"declared"`
	Desired  int            `json:"wanted"` // copies
	Ready    int            `json:"ready"`
	After    int            `json:"after"` // copies that are ready then
	Copies   []CopyForecast `json:"copies"`
}

// CopyForecast is a copy that is there or comes.
type CopyForecast struct {
	Node   string     `json:"node"`
	Disk   string     `json:"disk"`
	State  disk.State `json:"state,omitempty"` // "": nothing is there
	Action plan.Op    `json:"action,omitempty"`
	Later  bool       `json:"later,omitempty"` // the action waits for something that comes by itself
}

// DiskForecast is the space on one disk, in bytes.
type DiskForecast struct {
	Node           string `json:"node"`
	Disk           string `json:"disk"`
	Known          bool   `json:"known"` // a status tells of it; else there are only zeros
	Problem        string `json:"problem,omitempty"`
	Total          int64  `json:"total"`
	Reserved       int64  `json:"reserved"`
	FreeBefore     int64  `json:"before"`  // free
	Created        int64  `json:"comes"`   // of copies that are made
	CreatedUnknown int    `json:"unknown"` // copies that are made and of which the size is not known
	Deleted        int64  `json:"goes"`    // of copies that are deleted, at once or later
	FreeLowest     int64  `json:"lowest"`  // free when all has come and nothing has gone yet
	FreeAfter      int64  `json:"after"`   // free
	BelowReserve   bool   `json:"below"`   // Lowest is less than is reserved, by what comes
}

// ReasonGroup is a reason for which copies are held or blocked.
type ReasonGroup struct {
	Reason string   `json:"why"`
	Copies []string `json:"copies"` // or images, where no disk is concerned; sorted
}

// New says what a plan for nodes of d's configuration, or a part of it, comes to.
func New(c *plan.Cluster, d plan.Desired, p plan.Plan) Fleet {
	d.Node, d.OnlyDisks = "", nil
	f := Build(d, c.ObserveFrom(d, c.Disks), p)
	f.State = FleetState{Time: c.Now, Nodes: len(d.Config.Nodes), Unreachable: slices.Sorted(maps.Keys(c.Unreachable))}
	if f.State.Unreachable == nil {
		f.State.Unreachable = []string{}
	}
	return f
}
