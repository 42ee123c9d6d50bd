package plan

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Op is the operation of an action. Saved plans and the output as JSON contain its values, so
// they must not change.
type Op string

// The operations. Wait and Blocked do nothing. A wait ends without help; a blocked action
// needs a change by a person, although some are tried all the same at Action.Until.
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

// Ops are the operations that do something.
var Ops = []Op{Download, Upload, Export, Restore, Clone, Sync, Adopt, Verify, Repair, Backup, Cleanup, Evict}

// IsFirstCopy reports whether the operation creates the first copy of an image.
func (op Op) IsFirstCopy() bool {
	return op == Download || op == Upload || op == Export || op == Restore || op == Clone
}

// CreatesCopy reports whether the operation creates a copy.
func (op Op) CreatesCopy() bool { return op.IsFirstCopy() || op == Sync }

// ReadsCopies reports whether the operation reads its bytes from ready copies, which have
// the digest Action.SourceDigest.
func (op Op) ReadsCopies() bool { return op == Sync || op == Repair }

// Deletes reports whether the operation deletes a copy.
func (op Op) Deletes() bool { return op == Cleanup || op == Evict }

// NeedsFile reports whether the operation works on an existing file.
func (op Op) NeedsFile() bool { return op == Adopt || op == Verify || op == Repair }

// UnknownBytes is Action.Bytes of a transfer whose size is not known before it starts.
const UnknownBytes = -1

// Action is an operation on one copy, or a wait or a blocked operation, with its reason.
type Action struct {
	Op    Op     `json:"action"`
	Image string `json:"image"`
	UUID  string `json:"uuid"`
	Node  string `json:"node"`
	// Disk is the name of the disk. It is empty when the action concerns no particular disk.
	Disk string `json:"disk"`
	Reason
	// Bytes is the number of bytes that the operation transfers, copies or reads, or that a
	// deletion frees. It is UnknownBytes (-1) when it is not known.
	Bytes int64 `json:"bytes"`
	// Size is the size of the image if the action is a download by an index that is at hand; 0: it is not.
	// Bytes is then what the download is expected to transfer.
	Size int64 `json:"size,omitempty"`
	// From is the copy that a sync, a repair or a clone reads, as <node>/<disk>/<folder>. An
	// action that reads copies of other nodes reads all of them; From names one. A verification
	// with From reads only that copy, and not the one that the action concerns.
	From CopyRef `json:"from,omitzero"`
	// Until is when a wait ends, or when a blocked action is tried all the same. It is zero when the time
	// is not known.
	Until time.Time `json:"until,omitzero"`
	// Next is the operation on the same copy that is planned after this wait or blocked
	// action; "": none.
	Next Op `json:"then,omitempty"`
	// Demanded: replicas on the disk need the copy, so that it is created before others.
	Demanded bool `json:"demanded,omitempty"`
	// Blocked: neither time nor the rest of the plan leads to Next. Something else may,
	// such as the end of a use. So it can be true for a wait, too: it is not whether Op is Blocked.
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
	// Data is the number of bytes of Size that are not in chunks of zeros.
	Data int64 `json:"-"`
	// Cause is the code of the reason before a suspension replaced it.
	Cause Code `json:"-"`
}

// PinnedDigest is the digest of damaged copies of an image without a declared checksum. Until
// the recovery interval has passed, a new first copy must have it, because a node with a
// good copy may come back.
type PinnedDigest struct {
	Digest disk.Digest
	Until  time.Time
}

// NewAction returns an action on one copy.
func NewAction(op Op, ref CopyRef, reason Reason, bytes int64) Action {
	return Action{Op: op, Image: ref.ID.Name, UUID: ref.ID.UUID, Node: ref.Disk.Node, Disk: ref.Disk.Disk, Reason: reason, Bytes: bytes}
}

// wait returns a wait that ends without help at an unknown time.
func wait(ref CopyRef, reason Reason) Action { return NewAction(Wait, ref, reason, 0) }

// waitUntil returns a wait that ends at a time; zero: at an unknown time.
func waitUntil(ref CopyRef, reason Reason, until time.Time) Action {
	a := wait(ref, reason)
	a.Until = until
	return a
}

// blocked returns an action that needs a change by a person.
func blocked(ref CopyRef, reason Reason) Action { return NewAction(Blocked, ref, reason, 0) }

// backOff returns the wait for the next attempt after f, or a blocked action if f is final: a person
// must act, unless a rare attempt succeeds.
func backOff(ref CopyRef, f Failure) Action {
	if f.Final {
		a := blocked(ref, because(CodeRejected, "%s", f.Message))
		a.Until = f.RetryAt
		return a
	}
	return waitUntil(ref, because(CodeRetry, "%s", f.Message), f.RetryAt)
}

// CopyRef returns the copy that the action concerns.
func (a Action) CopyRef() CopyRef {
	return CopyRef{schema.DiskRef{Node: a.Node, Disk: a.Disk}, disk.ID{Name: a.Image, UUID: a.UUID}}
}

// Idle reports whether the action does nothing: it is a wait or blocked.
func (a Action) Idle() bool { return a.Op == Wait || a.Op == Blocked }

// VerifiesPeer reports whether the action reads a copy on another node to verify its bytes.
func (a Action) VerifiesPeer() bool { return a.Op == Verify && a.From != (CopyRef{}) }

// asWaitFor returns an idle action with op as its Next. It sets Action.Blocked if blocked is true or
// the operation of the action is Blocked. It returns other actions unchanged.
func (a Action) asWaitFor(op Op, blocked bool) Action {
	if a.Idle() {
		a.Next, a.Blocked = op, blocked || a.Op == Blocked
	}
	return a
}

// Eventually returns the operation that follows without help, now or later. follows is false if
// there is none.
func (a Action) Eventually() (op Op, follows bool) {
	if !a.Idle() {
		return a.Op, true
	}
	return a.Next, a.Next != "" && !a.Blocked
}

// targetDigest returns the digest that the copy of an image without a checksum will have. It
// is zero when any digest is accepted.
func (a Action) targetDigest() disk.Digest {
	if a.Op.ReadsCopies() {
		return a.SourceDigest
	}
	return a.Pinned.Digest
}

// DigestOf returns the digest that the copy of an action must have. Without a declared
// checksum it is the digest of the copy that the action reads.
func (d Desired) DigestOf(o Observed, a Action) disk.Digest {
	ref, image := a.CopyRef(), d.Config.Images[a.Image]
	if a.VerifiesPeer() {
		return a.SourceDigest
	}
	if a.Op == Repair || a.Op == Verify {
		return o.Disks[ref.Disk].Copies[ref.ID].SHA512
	}
	if !image.Checksum.IsZero() {
		return image.Checksum
	}
	return a.SourceDigest
}

// CopyRef names one copy in the cluster: a folder on a disk. As text it is
// <node>/<disk>/<folder>.
type CopyRef struct {
	Disk schema.DiskRef
	ID   disk.ID
}

// String returns <node>/<disk>/<folder>.
func (c CopyRef) String() string { return c.Disk.String() + "/" + c.ID.String() }

// MarshalText returns String, or nothing for the zero value.
func (c CopyRef) MarshalText() ([]byte, error) {
	if c == (CopyRef{}) {
		return nil, nil
	}
	return []byte(c.String()), nil
}

// UnmarshalText decodes what MarshalText returns.
func (c *CopyRef) UnmarshalText(text []byte) (err error) {
	*c = CopyRef{}
	if len(text) > 0 {
		*c, err = ParseCopyRef(string(text))
	}
	return err
}

// ParseCopyRef parses <node>/<disk>/<folder>.
func ParseCopyRef(text string) (CopyRef, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return CopyRef{}, fmt.Errorf("%q is not NODE/DISK/FOLDER", text)
	}
	id, err := disk.ParseID(parts[2])
	return CopyRef{schema.DiskRef{Node: parts[0], Disk: parts[1]}, id}, err
}
