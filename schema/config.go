package schema

import (
	"encoding/json"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Config is what the documents of a config directory declare together, with
// all defaults set. Nothing changes it after loading, so any number of goroutines may read
// it. Lists are never nil.
//
// Its JSON is a configuration that leads to the same plan. It omits what changes no plan, such as titles and tracking, and contains
// the addresses with their secrets.
type Config struct {
	Settings Settings `json:"settings"`
	// Nodes is empty when the configuration declares none. Then the node on which the
	// manager runs is alone.
	Nodes  map[string]Node  `json:"nodes"`
	Images map[string]Image `json:"images"`
}

// HasHost reports whether a host name is the name of a node or the host in the address of a node. Case does not matter.
func (c Config) HasHost(name string) bool {
	for node, declared := range c.Nodes {
		if strings.EqualFold(node, name) {
			return true
		}
		if u, err := url.Parse(declared.Address); err == nil && strings.EqualFold(u.Hostname(), name) && name != "" {
			return true
		}
	}
	return false
}

// IsPrivate reports whether the image has decrypted bytes, which other users of a node must not read.
// A clone that decrypts has them. A clone that neither encrypts nor decrypts has them if its source image has them.
func (c Config) IsPrivate(image string) bool {
	for range c.Images { // a chain of clones is not longer
		clone := c.Images[image].Source.Clone
		if clone == nil || clone.Encryption != EncryptionIgnore {
			return clone != nil && clone.Encryption == Decrypt
		}
		image = clone.BackingImage
	}
	return false
}

// Settings apply to all managers.
type Settings struct {
	CleanupWaitInterval  time.Duration `json:"-"` // MarshalJSON encodes the intervals
	RecoveryWaitInterval time.Duration `json:"-"`
	ScrubInterval        time.Duration `json:"-"` // 0: no scrub
	// MinNumberOfCopies is the default of images, at least 1. Image.Copies
	// already has this default.
	MinNumberOfCopies int `json:"minNumberOfCopies"`
	// ConcurrentReplenishPerNodeLimit limits how many jobs of each kind a node runs at the same time: deletions, verifications for
	// other nodes, copies that replicas need, all other jobs. Uploads and scrubs do not count. 0: one at a time, and only
	// first copies are created.
	ConcurrentReplenishPerNodeLimit int        `json:"concurrentReplenishPerNodeLimit"`
	PruneLimit                      PruneLimit `json:"pruneLimit"`
	// PruneConfirmed are the orphans that may be deleted although PruneLimit is exceeded. It is sorted and never nil.
	PruneConfirmed []ident.ID `json:"-"` // MarshalJSON encodes them
	// FollowReplicas is the default of images. Image.FollowReplicas already has this default. MarshalJSON
	// encodes only false, so that true leads to the config digest of releases without the field.
	FollowReplicas       bool        `json:"-"`
	AllowLoopbackSources bool        `json:"allowLoopbackSources"`
	Suspend              *Suspension `json:"suspend,omitempty"` // of everything; nil: none
	// Verify says which images need a signature; nil: no image. It is encoded only if it is declared. Otherwise the
	// config digest is that of releases without the field.
	Verify *VerifyPolicy `json:"verify,omitempty"`
	// Report is where each node puts its status document; nil: nowhere. It is encoded like Verify.
	Report *Report `json:"report,omitempty"`
	// Notify is where changes of state are sent; nil: nowhere. It is encoded like Verify.
	Notify *Notify `json:"notify,omitempty"`
	// Web is what the web page needs to know. Like Image.Title it decides nothing, so it is neither encoded nor part of the
	// config digest.
	Web Web `json:"-"`
}

// Web is what the web page of a daemon needs to know.
type Web struct {
	// EditURL is the address at which a person can edit a file, with {file} in place of its path; "": unknown.
	EditURL string
}

// MarshalJSON encodes the settings like a configuration file: intervals as "1h0m0s".
func (s Settings) MarshalJSON() ([]byte, error) {
	type plain Settings
	return json.Marshal(struct {
		CleanupWaitInterval  string `json:"cleanupWaitInterval"`
		RecoveryWaitInterval string `json:"recoveryWaitInterval"`
		ScrubInterval        string `json:"scrubInterval"`
		plain
		PruneConfirmed []ident.ID `json:"pruneConfirmed"`
		FollowReplicas *bool      `json:"followReplicas,omitempty"`
	}{s.CleanupWaitInterval.String(), s.RecoveryWaitInterval.String(), s.ScrubInterval.String(), plain(s), s.PruneConfirmed, ifFalse(s.FollowReplicas)})
}

// Suspension suspends everything or one image: running jobs continue, no job starts, and
// no copy is deleted.
type Suspension struct {
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`   // "": unknown
	Until  time.Time `json:"until,omitzero"` // in UTC; zero: no end
}

// Active reports whether there is a suspension that has not ended.
func (s *Suspension) Active(now time.Time) bool {
	return s != nil && (s.Until.IsZero() || now.Before(s.Until))
}

// PruneLimit limits how many images may be removed from the configuration at once
// and have their copies deleted: a count, or a percentage of all images. It is comparable.
type PruneLimit struct {
	n       int
	percent bool
}

// PruneCount returns a limit of n images.
func PruneCount(n int) PruneLimit { return PruneLimit{n: n} }

// PrunePercent returns a limit of n percent of all images, declared ones and orphans.
func PrunePercent(n int) PruneLimit { return PruneLimit{n: n, percent: true} }

// Exceeded reports whether there are more orphans than may be deleted without confirmation.
// declared is the number of declared images. A single orphan is never too many.
func (l PruneLimit) Exceeded(declared, orphans int) bool {
	if orphans <= 1 {
		return false
	}
	if l.percent {
		return 100*orphans > l.n*(declared+orphans)
	}
	return orphans > l.n
}

// String returns the limit as it is declared: "3" or "50%".
func (l PruneLimit) String() string {
	if l.percent {
		return strconv.Itoa(l.n) + "%"
	}
	return strconv.Itoa(l.n)
}

// MarshalJSON encodes a count as a number, and a percentage as a string.
func (l PruneLimit) MarshalJSON() ([]byte, error) {
	if l.percent {
		return json.Marshal(l.String())
	}
	return json.Marshal(l.n)
}

// Node is a declared machine.
type Node struct {
	// Address is the address of the node's manager, without a trailing slash; "" when none is
	// declared.
	Address           string            `json:"address,omitempty"`
	Tags              []string          `json:"tags"` // sorted, without duplicates
	AllowScheduling   bool              `json:"allowScheduling"`
	EvictionRequested bool              `json:"evictionRequested"`
	Disks             map[string]Disk   `json:"disks"`
	Pos               document.Position `json:"-"`
}

// Disk is a declared disk of a node.
type Disk struct {
	Path              string   `json:"path"`            // absolute and clean
	Tags              []string `json:"tags"`            // sorted, without duplicates
	StorageReserved   int64    `json:"storageReserved"` // bytes that must stay free
	AllowScheduling   bool     `json:"allowScheduling"`
	EvictionRequested bool     `json:"evictionRequested"`
}
