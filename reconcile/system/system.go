// Package system is everything outside the process that the manager of a node reads or changes: clocks, disks, peers and
// running jobs. A daemon has the implementations of this package (New). Packages scenario and simulation have others in memory, so
// that they run the same reconcile.Reconciler and the same reconcile.Loop.
//
// Reading order: system.go has the interfaces, local.go implements them for a machine.
package system

import (
	"context"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// System is everything that a node reads or changes outside its process.
type System struct {
	Now    func() Instant
	Random func() float64 // from [0, 1); spreads the retries of several nodes
	Secret func() uint64  // nobody can predict it; selects the chunk of a proof
	// OpenDisk opens and locks the disk at a path. It returns the uuid, if it could be read, also
	// together with an error such as disk.ErrLocked.
	OpenDisk func(path string) (d Disk, uuid string, err error)
	Peers    Peers
	Jobs     Jobs
}

// Instant is one moment by both clocks of a node.
type Instant struct {
	Wall   time.Time // UTC, without a monotonic reading; it can be set at any time
	Steady time.Time // advances evenly; comparable only with other steady times of this process
}

// Disk is an open disk. Its methods may be called concurrently. After Close they fail.
type Disk interface {
	// Check returns an error if the disk is not at its path any more, or is closed.
	Check() error
	// List returns the copies of one image name on the disk, and all copies if name is "". It
	// reads no image data.
	List(name string) (Contents, error)
	// Update changes the record of a copy durably.
	Update(id ident.ID, change func(*disk.Record)) error
	// RecordUsers records durably which replicas name images, as List last found them. With this record, a later process
	// knows that a folder that is not mounted ends no use (U6).
	RecordUsers() error
	// EndUses ends the uses of an image by replicas that List does not find any more. uuid "" stands for all generations.
	EndUses(name, uuid string)
	// SetMark, ReadMark, Marked, RemoveMark and Folder do what the methods of disk.Disk do.
	SetMark(id ident.ID, m disk.Mark) error
	ReadMark(id ident.ID, name string) (secret string, err error)
	Marked(id ident.ID) (bool, error)
	RemoveMark(id ident.ID, name string) error
	Folder() (model.FolderID, error)
	// Close unlocks the disk.
	Close() error
}

// Disks are open disks of one node by name.
type Disks map[string]Disk

// Contents are the copies on a disk and their users at one moment.
type Contents struct {
	disk.Listing
	Space model.Space
	// ReadOnly: no file of the disk can be changed.
	ReadOnly bool
	Users    Users
}

// Users reports which copies on a disk are in use, and by what.
type Users interface {
	// Err returns why not all users can be determined, or nil. With an error, all copies of the node count as
	// in use.
	Err() error
	// InUse reports whether a replica names the copy. reason names the replica.
	InUse(id ident.ID) (reason string, inUse bool)
	// Needs returns the images that replicas on the disk name.
	Needs() map[ident.ID]disk.Need
	// FileOpen reports whether a process has the file of the copy open. reason names the process. It
	// also finds this process, and is slower than InUse.
	FileOpen(id ident.ID) (reason string, open bool)
}

// NeedOf returns the need of these replicas as a node says it.
func NeedOf(d disk.Need) model.Need {
	text := "replica "
	if len(d.Replicas) > 1 {
		text = "replicas "
	}
	return model.Need{By: text + plan.JoinMax(d.Replicas, ", ", 3), Since: d.Since, OtherWriter: d.OtherWriter}
}

// Peers are the managers of the other nodes.
type Peers interface {
	// Follow polls exactly these nodes from now on, by name.
	Follow(ctx context.Context, nodes map[string]peer.Target)
	// Observations returns the last observation of each followed node. The caller must not
	// change the states in it. All times are steady times of this process.
	Observations() map[string]peer.Observation
	// Publish makes the state of this node available to the other nodes.
	Publish(s model.Node)
	// Close ends the polls.
	Close()
}

const (
	// QueryTimeout is how long Jobs.Query waits for the response of a node.
	QueryTimeout = 5 * time.Second
	// ProofTimeout is how long Jobs.Prove waits for the proof of a copy: a chunk of 1 MiB over a link
	// of 0.5 Mbit/s. The responses of the queries must still be young enough after it.
	ProofTimeout = 20 * time.Second
)

// Jobs executes actions, each independently of the others. Start, Query and Prove return at once. They
// report the outcome by calling done exactly once, from any goroutine. When ctx ends, they call it
// soon. The bytes that a job transferred until then are kept. The argument on has the disks of this node.
type Jobs interface {
	// Start executes an order. A deletion (model.Op.Deletes) removes the copy unless it is
	// in use; it does not end with ctx.
	Start(ctx context.Context, o job.Order, on Disks, done func(error))
	// Query requests from each node, directly, its current copies of the image of the deletion a. Each node
	// looks for the mark named mark. The key of a response is the name of the node. A node that does not
	// respond within QueryTimeout has no entry.
	Query(ctx context.Context, a plan.Action, mark string, nodes []peer.Address, done func(map[string]model.Node))
	// Prove requests one chunk of each copy for the deletion a, or reads the chunk if the copy is on this node, and reports
	// the outcomes. If no chunk comes within ProofTimeout, the outcome of the copy may be missing.
	Prove(ctx context.Context, a plan.Action, tasks []ProofTask, on Disks, done func(map[ident.CopyRef]plan.Proof))
	// CanExport returns an error if no usable replica of the volume is on these disks.
	CanExport(e schema.ExportFromVolume, on Disks) error
}

// ProofTask is a trusted plan.ProofRequest with what its execution needs to know.
type ProofTask struct {
	plan.ProofRequest
	Own    bool        // the copy is on this node; false: Source is asked
	Source peer.Source // of a copy on another node
	// Secret selects the chunk. It was chosen after the withdrawal of the copy that may be deleted, so
	// that nobody could get the chunk from that copy in time.
	Secret uint64
}
