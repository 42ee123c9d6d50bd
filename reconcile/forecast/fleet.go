// Package forecast summarises plans of a whole cluster for people who approve a change: which images
// and copies they create and delete, what crosses the networks, how full disks become, and what is
// at risk. It also compares two configurations.
//
// A forecast includes what follows from the plan without any further change, such as a clean-up after
// its interval, or a sync after the first copy. It is a pure function of the cluster and the plan.
//
// Reading order: fleet.go has the forecast as data, forecast.go computes it, and compare.go compares
// configurations.
package forecast

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Fleet is the forecast for the plan of all nodes. Its JSON is a stable interface: fields may be
// added, and no field changes its meaning.
type Fleet struct {
	State   FleetState      `json:"state"`
	Risk    Risk            `json:"risk"`
	Traffic Traffic         `json:"traffic"`
	Images  []ImageForecast `json:"images"` // declared or with copies, sorted by name and uuid
	Disks   []DiskForecast  `json:"disks"`  // the declared disks, sorted by name
	// Deferred has the deletions that are stuck. Blocked has the blocked actions. Both are grouped
	// by reason.
	Deferred []ReasonGroup `json:"deferred"`
	Blocked  []ReasonGroup `json:"blocked"`
}

// FleetState is how current and complete the observed state is.
type FleetState struct {
	Time  time.Time `json:"time"` // of the newest status
	Nodes int       `json:"nodes"`
	// Unreachable are the declared nodes that have no saved status, and that have not responded to
	// a node with a saved status. They are sorted.
	Unreachable []string `json:"unreachable"`
}

// CopyStats is a number of copies and their size on disk.
type CopyStats struct {
	Copies int   `json:"copies"`
	Bytes  int64 `json:"bytes"`
}

func (a *CopyStats) add(bytes int64) {
	a.Copies++
	a.Bytes += max(0, bytes) // a negative size is unknown
}

// Risk is what a person who approves a change should know.
type Risk struct {
	Removes      CopyStats `json:"removes"`      // copies that are deleted at once
	RemovesLater CopyStats `json:"removesLater"` // copies that are deleted after a wait
	Evicts       CopyStats `json:"evicts"`       // copies that are deleted when others replace them
	// LosesAll are images that have ready copies and will have none.
	LosesAll []string `json:"losesAll"`
	// BelowCopies are images that will have fewer ready copies than desired.
	BelowCopies []Shortfall `json:"belowCopies"`
	// BelowReserve are disks, as NODE/DISK, that will have less free space than is reserved.
	BelowReserve []string `json:"belowReserve"`
	Deferred     int      `json:"deferred"` // copies in Fleet.Deferred
	Blocked      int      `json:"blocked"`  // entries in Fleet.Blocked
}

// Shortfall is an image with fewer ready copies than desired.
type Shortfall struct {
	Image   string `json:"image"`
	Desired int    `json:"desired"`
	After   int    `json:"after"` // ready copies after the plan
}

// Traffic is how much is transferred, by where it comes from.
type Traffic struct {
	Upstreams TransferStats `json:"upstreams"` // for first copies
	Peers     TransferStats `json:"peers"`     // between nodes
	Local     TransferStats `json:"local"`     // between disks of one node
	Backups   TransferStats `json:"backups"`
}

// TransferStats is a number of transfers and their size.
type TransferStats struct {
	Transfers int   `json:"transfers"`
	Bytes     int64 `json:"bytes"`   // of the transfers with a known size
	Unknown   int   `json:"unknown"` // transfers with an unknown size
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
	Desired  int            `json:"desired"` // copies
	Ready    int            `json:"ready"`   // copies that are ready now
	After    int            `json:"after"`   // copies that are ready after the plan
	Copies   []CopyForecast `json:"copies"`  // existing and planned copies, sorted by disk
}

// CopyForecast is an existing or planned copy.
type CopyForecast struct {
	Node  string      `json:"node"`
	Disk  string      `json:"disk"`
	State model.State `json:"state,omitempty"` // "" means that it does not exist
	Op    model.Op    `json:"op,omitempty"`    // the planned operation, now or later
	Later bool        `json:"later,omitempty"` // the operation waits for a time or another action
}

// DiskForecast is the space on one disk, in bytes.
type DiskForecast struct {
	Node           string `json:"node"`
	Disk           string `json:"disk"`
	Known          bool   `json:"known"` // the disk was observed; false means that the sizes are zero
	Problem        string `json:"problem,omitempty"`
	Total          int64  `json:"total"`
	Reserved       int64  `json:"reserved"`
	FreeBefore     int64  `json:"freeBefore"`
	Created        int64  `json:"created"`        // by new copies with a known size
	CreatedUnknown int    `json:"createdUnknown"` // the number of new copies with an unknown size
	Deleted        int64  `json:"deleted"`        // by deletions, at once or later
	FreeLowest     int64  `json:"freeLowest"`     // after all new copies and before any deletion
	FreeAfter      int64  `json:"freeAfter"`
	BelowReserve   bool   `json:"belowReserve"` // new copies leave less than Reserved free
}

// ReasonGroup is a reason, and what is deferred or blocked for it.
type ReasonGroup struct {
	Reason string   `json:"reason"`
	Copies []string `json:"copies"` // as NODE/DISK/FOLDER, or images if no disk is concerned; sorted
}

// New returns the forecast for a plan of nodes of the cluster, with the configuration of d.
func New(c *plan.Cluster, d plan.Desired, p plan.Plan) Fleet {
	d.Node, d.OnlyDisks = "", nil // as a node without disks sees the cluster
	f := build(d, c.Observe(d), p)
	f.State = FleetState{Time: c.Now, Nodes: len(d.Config.Nodes), Unreachable: slices.AppendSeq([]string{}, maps.Keys(c.Unreachable))}
	slices.Sort(f.State.Unreachable)
	return f
}

// Without returns r without the images and disks that base lists with the same values.
func (r Risk) Without(base Risk) Risk {
	r.LosesAll = slices.DeleteFunc(slices.Clone(r.LosesAll), func(s string) bool { return slices.Contains(base.LosesAll, s) })
	r.BelowReserve = slices.DeleteFunc(slices.Clone(r.BelowReserve), func(s string) bool { return slices.Contains(base.BelowReserve, s) })
	r.BelowCopies = slices.DeleteFunc(slices.Clone(r.BelowCopies), func(s Shortfall) bool { return slices.Contains(base.BelowCopies, s) })
	return r
}
