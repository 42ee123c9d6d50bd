package schema

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Config is what the documents of a config directory declare together, with
// every default filled in. It is a value: nothing changes it after loading, so
// any number of goroutines may read it.
type Config struct {
	Settings Settings
	// Nodes is empty when the configuration declares none: then the node that
	// runs is alone.
	Nodes  map[string]Node
	Images map[string]Image
}

// Settings say how the managers behave.
type Settings struct {
	CleanupWaitInterval  time.Duration
	RecoveryWaitInterval time.Duration
	// MinNumberOfCopies is the default of images; it is at least 1. Image.Copies
	// has it applied already.
	MinNumberOfCopies int
	// ConcurrentReplenishPerNodeLimit is 0 when only first copies are made.
	ConcurrentReplenishPerNodeLimit int
	PruneLimit                      PruneLimit
	// PruneConfirmed are the images over PruneLimit that may go, sorted.
	PruneConfirmed []disk.ID
	// ScrubInterval is 0 when images are never read again by themselves.
	ScrubInterval        time.Duration
	AllowLoopbackSources bool
	Suspend              *Suspension `json:",omitempty"` // of everything; nil: none
}

// Suspension lets what is under way go on, nothing else begin, and nothing be removed.
type Suspension struct {
	Reason string
	By     string    `json:",omitempty"` // "" is not known
	Until  time.Time `json:",omitzero"`  // in UTC; zero: until it is lifted
}

// Holds reports whether the suspension is there, and not over.
func (s *Suspension) Holds(now time.Time) bool {
	return s != nil && (s.Until.IsZero() || now.Before(s.Until))
}

// Node is a declared machine.
type Node struct {
	// Address is where its manager answers, without a trailing slash; "" when
	// none is declared.
	Address           string
	Tags              []string // sorted, without duplicates
	AllowScheduling   bool
	EvictionRequested bool
	Disks             map[string]Disk
	Pos               Position `json:"-"`
}

// Disk is a declared disk of a node.
type Disk struct {
	Path              string   // absolute and clean
	Tags              []string // sorted, without duplicates
	StorageReserved   int64    // bytes that have to stay free
	AllowScheduling   bool
	EvictionRequested bool
}

// DiskRef names a disk as the configuration does: not by its identity.
type DiskRef struct{ Node, Disk string }

// String returns "node/disk".
func (r DiskRef) String() string { return r.Node + "/" + r.Disk }
