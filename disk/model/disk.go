package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Version is the version of the format in which a Node is encoded, for other nodes and in status documents. A reader rejects
// every other version.
const Version = 1

// VersionError is the error for data whose format has another version than this program supports. action is what to do.
func VersionError(found, supported int, action string) error {
	return fmt.Errorf("it has version %d of the format, and this program has version %d: %s", found, supported, action)
}

// Node is what a node says about itself. Its disks have the names of the configuration.
type Node struct {
	Version int    `json:"version"`
	Node    string `json:"node"`
	// ConfigDigest is the config digest of the node. It is "" while any part of the configuration
	// is invalid, or if the node is observe-only.
	ConfigDigest string `json:"configDigest"`
	// Clock is the wall time of the node when it said this.
	Clock time.Time `json:"clock,omitzero"`
	// Mark is the name of the mark for which the node was asked to look in the folders of its copies.
	Mark  string          `json:"mark,omitempty"`
	Disks map[string]Disk `json:"disks,omitempty"`
	// Conditions are what the node observes about the whole cluster, sorted. Nodes that send notifications use them to agree on the
	// beginning of a condition. Without settings.notify there are none.
	Conditions []Condition `json:"conditions,omitempty"`

	// Partial and Omitted say what the reader of another node's state left out. Partial is true if it left out disks that are not
	// declared, or copies that nobody needs, because there are more of them than it keeps. Omitted is the number of orphans and
	// copies of other generations about which the reader knows nothing.
	Partial bool `json:"-"`
	Omitted int  `json:"-"`
}

// Condition is something that has held for an image since a time of the node's clock. Image "" means that it holds for the configuration.
// Package notification defines the kinds.
type Condition struct {
	Kind  string    `json:"kind"`
	Image string    `json:"image,omitempty"`
	Since time.Time `json:"since"`
}

// Disk is one disk of a node.
type Disk struct {
	Path string `json:"path,omitempty"`
	UUID string `json:"uuid"` // diskUUID of longhorn-disk.cfg
	// Problem is why the disk cannot be used; "": it can. With a problem nothing is known of
	// its copies, and nothing is done to them.
	Problem string `json:"problem,omitempty"`
	// ProblemSince is when this node first observed the problem.
	ProblemSince time.Time `json:"problemSince,omitzero"`
	// ReadOnly: the file system is read-only. Copies are observed and served, and nothing is written.
	ReadOnly bool `json:"readOnly,omitempty"`
	// Disputed is why the identity of the disk is doubtful: disks of two nodes have the same uuid. Nothing is deleted
	// from it, and no deletion counts on its copies. "": there is no doubt.
	Disputed string `json:"disputed,omitempty"`
	// UsageUnknown is why it is not known which copies are in use (U2). While it is set, all copies of
	// the node count as in use (U7), until a person repairs the metadata. "": it is known.
	UsageUnknown string `json:"usageUnknown,omitempty"`
	// ClockStepped: the wall clock was set after the times beside the copies were recorded,
	// so their clean-up intervals restart.
	ClockStepped bool `json:"clockStepped,omitempty"`
	Space
	Unmanaged []string `json:"unmanaged,omitempty"` // names of files that this program does not own and leaves alone
	Copies    Copies   `json:"copies,omitempty"`
	// Needs are the images that replicas on the disk name, whether they have a copy there or not: Copy.Need of the copies.
	// While a disk of another node has a problem, they are from its last listing; nil: there was none since this process started.
	Needs map[ident.ID]Need `json:"-"`
}

// Space is the size of a file system, in bytes.
type Space struct {
	Total int64 `json:"total"`
	Free  int64 `json:"free"` // without the blocks that the file system reserves for root
}

// Faults returns what is wrong with the disk, for people.
func (d Disk) Faults() []string {
	var faults []string
	if d.Problem != "" {
		faults = append(faults, d.Problem)
	}
	if d.ReadOnly {
		faults = append(faults, ReadOnlyText)
	}
	if d.Disputed != "" {
		faults = append(faults, d.Disputed)
	}
	if d.UsageUnknown != "" {
		faults = append(faults, d.UsageUnknown)
	}
	return faults
}

// ReadOnlyText is what people read about a disk with ReadOnly.
const ReadOnlyText = "its file system is read-only"

// ProblemFor returns the least time for which the disk has had a problem, up to the time now.
func (d Disk) ProblemFor(now time.Time) time.Duration { return since(d.ProblemSince, now) }

// Ready returns a copy on the disk, and whether it is ready.
func (d Disk) Ready(id ident.ID) (Copy, bool) {
	c, ok := d.Copies[id]
	return c, ok && c.State == Ready && d.Problem == ""
}

// Copies are the copies on a disk. Their JSON is a list, sorted by folder.
type Copies map[ident.ID]Copy

// NewCopies returns the copies of a list.
func NewCopies(list ...Copy) Copies {
	copies := make(Copies, len(list))
	for _, c := range list {
		copies[c.ID] = c
	}
	return copies
}

// MarshalJSON returns the list.
func (c Copies) MarshalJSON() ([]byte, error) {
	list := make([]Copy, 0, len(c))
	for _, id := range slices.SortedFunc(maps.Keys(c), ident.ID.Compare) {
		list = append(list, c[id])
	}
	return json.Marshal(list)
}

// UnmarshalJSON decodes what MarshalJSON returns.
func (c *Copies) UnmarshalJSON(text []byte) error {
	var list []Copy
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	if *c = NewCopies(list...); len(*c) < len(list) {
		return errors.New("a copy occurs twice")
	}
	return nil
}

// Peer is what this node knows about another node: what it says, and whether it responds.
type Peer struct {
	// Queried: at least one query has ended, with or without success, since this process
	// started.
	Queried bool `json:"queried"`
	// Problem is why the peer does not respond; "": its last response is current.
	Problem string `json:"problem,omitempty"`
	// UnreachableSince is the last response of the peer, or the start of this process. Since then,
	// at least, it has not responded. It is zero while Problem is empty.
	UnreachableSince time.Time `json:"unreachableSince,omitzero"`
	// ConfigDigest is the config digest of the peer. "" means that its configuration is invalid.
	ConfigDigest string `json:"configDigest"`
	// OtherConfigSince is when this process first observed that the peer has another config digest
	// than this node, or none. It is zero while the digests are the same, and while this node has
	// none.
	OtherConfigSince time.Time `json:"otherConfigSince,omitzero"`
	// LastResponse is the time of the peer's last response by this node's clock. While the peer is
	// unreachable, it is the start of the last query with a response. Zero: it never responded.
	LastResponse time.Time `json:"lastResponse,omitzero"`
	// Outdated: the stored response leaves out what the peer published about disks that were declared
	// later. The next response takes a moment.
	Outdated bool `json:"outdated,omitempty"`
	// Omitted is the number of the peer's orphans and copies of other generations that are left out,
	// because the peer publishes more of them than this node keeps.
	Omitted int `json:"omitted,omitempty"`
}

// Responds reports whether the last response of the peer is current.
func (p Peer) Responds() bool { return p.Queried && p.Problem == "" }

// UnreachableFor returns the least time for which the peer has not responded, up to the time now.
func (p Peer) UnreachableFor(now time.Time) time.Duration { return since(p.UnreachableSince, now) }

// OtherConfigFor returns the least time for which the peer has had another configuration, up to the time now.
func (p Peer) OtherConfigFor(now time.Time) time.Duration { return since(p.OtherConfigSince, now) }

func since(at, now time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(0, now.Sub(at))
}
