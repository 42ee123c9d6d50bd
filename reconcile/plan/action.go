package plan

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Op says what an action does. The words are part of the plan's interface.
type Op string

// The kinds of action. Wait and Blocked do nothing: Wait names what will end it
// by itself, Blocked what a person has to change.
const (
	Download Op = "download"
	Upload   Op = "upload"
	Export   Op = "export"
	Restore  Op = "restore"
	Clone    Op = "clone"
	Sync     Op = "sync"
	Adopt    Op = "adopt"
	Verify   Op = "verify"
	Repair   Op = "repair"
	Backup   Op = "backup"
	Cleanup  Op = "cleanup"
	Evict    Op = "evict"
	Wait     Op = "wait"
	Blocked  Op = "blocked"
)

// Ops are those that do something.
var Ops = []Op{Download, Upload, Export, Restore, Clone, Sync, Adopt, Verify, Repair, Backup, Cleanup, Evict}

// IsFirstCopy reports whether the action makes the first copy of an image.
func (k Op) IsFirstCopy() bool {
	return k == Download || k == Upload || k == Export || k == Restore || k == Clone
}

// CreatesCopy reports whether the action makes a copy that was not there.
func (k Op) CreatesCopy() bool { return k.IsFirstCopy() || k == Sync }

// ReadsCopies reports whether the action brings bytes that other copies have: Action.sum.
func (k Op) ReadsCopies() bool { return k == Sync || k == Repair }

// Deletes reports whether the action deletes a copy.
func (k Op) Deletes() bool { return k == Cleanup || k == Evict }

// NeedsFile reports whether the action is about a file that is there.
func (k Op) NeedsFile() bool { return k == Adopt || k == Verify || k == Repair }

// UnknownBytes is the size of a transfer that nobody knows before it begins.
const UnknownBytes = -1

// Action is one thing to do, or one that cannot be done yet, with its reason.
type Action struct {
	Op    Op     `json:"action"`
	Image string `json:"image"`
	UUID  string `json:"uuid"`
	Node  string `json:"node"`
	// Disk is the name of the disk, or "" when no disk is the right one.
	Disk   string `json:"disk"`
	Reason string `json:"reason"`
	// Bytes is what crosses the network or is copied or read, or what a deletion
	// frees; UnknownBytes (-1) when it is not known.
	Bytes int64 `json:"bytes"`
	// From is a copy that a sync, a repair or a clone reads: <node>/<disk>/<folder>. From
	// other nodes all are read that have one.
	From CopyRef `json:"from,omitzero"`
	// Until is when a wait ends by itself, if that is a matter of time.
	Until time.Time `json:"until,omitzero"`
	// Next is what a wait is for, where that is an action on the same copy.
	Next Op `json:"then,omitempty"`
	// Held: it does not come about by itself, with time or with the rest of the plan; what
	// keeps it may end all the same, as a use does.
	Blocked bool `json:"held,omitempty"`

	// LocalSource is the copy on a disk of this process that the action reads. It is zero
	// when the action reads copies of other nodes, or none.
	LocalSource CopyRef `json:"-"`
	// SourceDigest is the digest of the copy that From names.
	SourceDigest disk.Digest `json:"-"`
	// Scrub: a periodic verification, which reads at a low rate.
	Scrub bool `json:"-"`
	// Pinned is the digest that a first copy must have for now although none is declared.
	Pinned PinnedDigest `json:"-"`
}

// PinnedDigest is a digest that only failed copies have borne, but not for so long that
// another one may take its place.
type PinnedDigest struct {
	Digest disk.Digest
	Until  time.Time
}

// CopyRef names one copy in the cluster: a folder on a disk.
type CopyRef struct {
	Disk schema.DiskRef
	ID   disk.ID
}

// String returns <node>/<disk>/<folder>.
func (k CopyRef) String() string { return k.Disk.String() + "/" + k.ID.String() }

// MarshalText writes the copy as String does, nothing for the zero value.
func (k CopyRef) MarshalText() ([]byte, error) {
	if k == (CopyRef{}) {
		return nil, nil
	}
	return []byte(k.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (k *CopyRef) UnmarshalText(text []byte) (err error) {
	*k = CopyRef{}
	if len(text) > 0 {
		*k, err = ParseCopyRef(string(text))
	}
	return err
}

// CopyRef names the copy that the action is about.
func (a Action) CopyRef() CopyRef {
	return CopyRef{schema.DiskRef{Node: a.Node, Disk: a.Disk}, disk.ID{Name: a.Image, UUID: a.UUID}}
}

// asWaitFor is the action as a wait for one of that kind, if it is one.
func (a Action) asWaitFor(kind Op, held bool) Action {
	if a.Idle() {
		a.Next, a.Blocked = kind, held || a.Op == Blocked
	}
	return a
}

// Eventually is what the action does, at once or by itself later; "" if it does nothing.
func (a Action) Eventually() Op {
	switch {
	case !a.Idle():
		return a.Op
	case a.Blocked:
		return ""
	}
	return a.Next
}

// Idle reports whether executing the action means doing nothing.
func (a Action) Idle() bool { return a.Op == Wait || a.Op == Blocked }

// Plan is everything that has to be done, sorted by image, disk and action. It is
// a value: the same one is printed by a dry run and executed.
type Plan struct {
	Actions []Action `json:"actions"`
	Summary Summary  `json:"summary"`
	// Suspended is what the configuration suspends at the time of the plan: that of
	// everything first, then by image.
	Suspended []Suspension `json:"suspended,omitempty"`
	// Digest and Revision are those of the configuration, "" while anything of it is
	// broken, and where it is of no commit.
	Digest   string `json:"digest,omitempty"`
	Revision string `json:"revision,omitempty"`
}

// Summary counts the actions of a plan.
type Summary struct {
	Counts map[Op]int `json:"counts"`
	// TransferBytes is what first copies, syncs and backups move, as far as it is known.
	TransferBytes int64 `json:"transferBytes"`
	// UnknownSizes is how many of those have a size that is not known.
	UnknownSizes int `json:"unknownSizes"`
	// FreedBytes is what clean-ups and evictions give back.
	FreedBytes int64 `json:"freedBytes"`
}

func (d Desired) NewPlan(actions []Action) Plan {
	slices.SortFunc(actions, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Disk, b.Disk),
			cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Reason, b.Reason))
	})
	p := Plan{Actions: actions, Summary: Summary{Counts: map[Op]int{}}, Digest: d.Digest, Revision: d.Revision}
	for _, a := range actions {
		s := &p.Summary
		s.Counts[a.Op]++
		switch {
		case (a.Op.CreatesCopy() || a.Op == Backup) && a.Bytes == UnknownBytes:
			s.UnknownSizes++
		case a.Op.CreatesCopy(), a.Op == Backup:
			s.TransferBytes += a.Bytes
		case a.Op.Deletes():
			s.FreedBytes += a.Bytes
		}
	}
	return p
}

// Empty reports whether the plan changes nothing: it holds nothing but waits.
func (p Plan) Empty() bool {
	return !slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Op != Wait })
}

// SupersededBy reports whether what is under way must not come about any more, as the plan
// has something else for the copy by now. A removal goes on for its own reason only. Bytes
// that nobody declared must not come beside others that are there, or that the image has to
// have for now, and nobody has to send what is there.
func (a Action) SupersededBy(image schema.Image, now Action) bool {
	switch {
	case a.Op.Deletes() || now.Op.Deletes():
		return a.Op != now.Op
	case a.Op.IsFirstCopy() && !now.Op.IsFirstCopy():
		return image.Checksum.IsZero() || a.Op == Upload
	case a.Scrub && now.Op == Verify && !now.Scrub:
		return true // what was read before may have changed, and somebody waits
	case !image.Checksum.IsZero() || !a.Op.IsFirstCopy() && !a.Op.ReadsCopies():
		return false
	}
	due := now.targetDigest()
	return !due.IsZero() && a.targetDigest() != due
}

// targetDigest is the digest that the copy of an image without a checksum will have, zero if any
// will do.
func (a Action) targetDigest() disk.Digest {
	if a.Op.ReadsCopies() {
		return a.SourceDigest
	}
	return a.Pinned.Digest
}

// SameDeclaration reports whether two declarations are one to an action of that kind.
func (k Op) SameDeclaration(a, b schema.Image) bool {
	return SameImage(a, b) && (k != Backup || sameBackup(a, b))
}

// sameBackup reports whether two declarations keep a backup in one place.
func sameBackup(a, b schema.Image) bool { return reflect.DeepEqual(a.Backup, b.Backup) }

// SameImage reports whether two declarations ask for the same bytes from the same
// places. Where else copies should be is nothing to a transfer under way.
func SameImage(a, b schema.Image) bool { return reflect.DeepEqual(WithoutPolicy(a), WithoutPolicy(b)) }

// WithoutPolicy is a declaration without what is nothing to the bytes and the way to them.
func WithoutPolicy(image schema.Image) schema.Image {
	image.Copies, image.AllDisks, image.Disks = 0, false, nil
	image.NodeSelector, image.DiskSelector = nil, nil
	image.UUIDDeclared, image.Pos, image.Declaration = false, document.Position{}, disk.Declaration{}
	image.Backup, image.Suspend = nil, nil
	return image
}

// DigestOf is the digest that the copy of an action has to have: without a checksum
// that of what it is made of.
func (d Desired) DigestOf(o Observed, a Action) disk.Digest {
	key, image := a.CopyRef(), d.Config.Images[a.Image]
	if a.Op == Repair || a.Op == Verify {
		return o.Disks[key.Disk].Copies[key.ID].SHA512
	}
	if !image.Checksum.IsZero() {
		return image.Checksum
	}
	return a.SourceDigest
}

// ParseCopyRef reads <node>/<disk>/<folder>.
func ParseCopyRef(text string) (CopyRef, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return CopyRef{}, fmt.Errorf("%q is not NODE/DISK/FOLDER", text)
	}
	id, err := disk.ParseID(parts[2])
	return CopyRef{schema.DiskRef{Node: parts[0], Disk: parts[1]}, id}, err
}
