package plan

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// UnknownBytes is Action.Bytes of a transfer whose size is not known before it starts.
const UnknownBytes = -1

// Action is an operation on one copy, or a wait or a blocked operation, with its reason.
type Action struct {
	Op    model.Op `json:"op"`
	Image string   `json:"image"`
	UUID  string   `json:"uuid"`
	Node  string   `json:"node"`
	// Disk is the name of the disk. It is empty when the action concerns no particular disk.
	Disk         string `json:"disk"`
	model.Reason `json:"reason,omitzero"`
	// Bytes is the number of bytes that the operation transfers, copies or reads, or that a
	// deletion frees. It is UnknownBytes (-1) when it is not known.
	Bytes int64 `json:"bytes"`
	// Size is the size of the image if the action is a download by an index, and this node has that index. Then Bytes is the
	// expected transfer. 0: any other action.
	Size int64 `json:"size,omitempty"`
	// From is the copy that a sync, a repair or a clone reads, as <node>/<disk>/<folder>. An
	// action that reads copies of other nodes reads all of them; From names the first. A verification
	// with From reads only that copy, and not the copy that the action concerns.
	From ident.CopyRef `json:"from,omitzero"`
	// Until is when a wait ends, or when a blocked action is tried all the same. It is zero when the time
	// is not known.
	Until time.Time `json:"until,omitzero"`
	// Next is the operation on the same copy that is planned after this wait or blocked
	// action; "": none.
	Next model.Op `json:"next,omitempty"`
	// Needed: replicas on the disk need the copy. It is created before other copies.
	Needed bool `json:"needed,omitempty"`
	// Stuck: neither time nor the rest of the plan leads to Next. Another event may, such as the end of a use.
	Stuck bool `json:"stuck,omitempty"`

	// LocalSource is the copy on a disk of this process that the action reads. It is zero
	// when the action reads copies of other nodes, or none.
	LocalSource ident.CopyRef `json:"-"`
	// SourceDigest is the digest of the copy that From names.
	SourceDigest ident.Digest `json:"-"`
	// Scrub: a periodic verification, which reads at a low rate.
	Scrub bool `json:"-"`
	// Pinned is the digest that a first copy must have for now although none is declared.
	Pinned PinnedDigest `json:"-"`
	// Data is the number of bytes of Size that are not in chunks of zeros.
	Data int64 `json:"-"`
	// Cause is the code of the reason before a suspension replaced it.
	Cause model.Code `json:"-"`
}

// PinnedDigest is the digest of damaged copies of an image without a declared checksum. Until
// the recovery interval has passed, a new first copy must have it, because a node with a
// good copy may come back.
type PinnedDigest struct {
	Digest ident.Digest
	Until  time.Time
}

// NewAction returns an action on one copy.
func NewAction(op model.Op, ref ident.CopyRef, reason model.Reason, bytes int64) Action {
	return Action{Op: op, Image: ref.ID.Name, UUID: ref.ID.UUID, Node: ref.Disk.Node, Disk: ref.Disk.Disk, Reason: reason, Bytes: bytes}
}

// wait returns a wait. It is not known when it ends, nor whether it ends without help.
func wait(ref ident.CopyRef, reason model.Reason) Action {
	return NewAction(model.Wait, ref, reason, 0)
}

// waitUntil returns a wait that ends at the time until. Zero means that this time is not known.
func waitUntil(ref ident.CopyRef, reason model.Reason, until time.Time) Action {
	a := wait(ref, reason)
	a.Until = until
	return a
}

// blocked returns a blocked action: a person must change something.
func blocked(ref ident.CopyRef, reason model.Reason) Action {
	return NewAction(model.Blocked, ref, reason, 0)
}

// backOff returns the wait for the next attempt after failure f. After a final failure it returns a blocked
// action: a person must act, unless a rare attempt succeeds.
func backOff(ref ident.CopyRef, f model.Failure) Action {
	if f.Final {
		a := blocked(ref, because(CodeRejected, "%s", f.Message))
		a.Until = f.RetryAt
		return a
	}
	return waitUntil(ref, because(CodeRetry, "%s", f.Message), f.RetryAt)
}

// CopyRef returns the copy that the action concerns.
func (a Action) CopyRef() ident.CopyRef {
	return ident.CopyRef{Disk: ident.DiskRef{Node: a.Node, Disk: a.Disk}, ID: ident.ID{Name: a.Image, UUID: a.UUID}}
}

// Idle reports whether the action does nothing: it is a wait or blocked.
func (a Action) Idle() bool { return a.Op == model.Wait || a.Op == model.Blocked }

// VerifiesPeer reports whether the action reads a copy on another node to verify its bytes.
func (a Action) VerifiesPeer() bool { return a.Op == model.Verify && a.From != (ident.CopyRef{}) }

// asWaitFor returns an idle action with op as its Next. The action is stuck if stuck is true or if it is blocked.
// Actions that are not idle do not change.
func (a Action) asWaitFor(op model.Op, stuck bool) Action {
	if a.Idle() {
		a.Next, a.Stuck = op, stuck || a.Op == model.Blocked
	}
	return a
}

// Eventually returns the operation that follows without help, now or later. follows is false if
// there is none.
func (a Action) Eventually() (op model.Op, follows bool) {
	if !a.Idle() {
		return a.Op, true
	}
	return a.Next, a.Next != "" && !a.Stuck
}

// targetDigest returns the digest that the copy of an image without a checksum will have. It
// is zero when any digest is accepted.
func (a Action) targetDigest() ident.Digest {
	if a.Op.ReadsCopies() {
		return a.SourceDigest
	}
	return a.Pinned.Digest
}

// DigestOf returns the digest that the copy of an action must have. A repair or verification keeps the recorded digest.
// Otherwise it is the declared checksum. Without one, it is the digest of the copy that the action reads.
func (d Desired) DigestOf(o Observed, a Action) ident.Digest {
	ref, image := a.CopyRef(), d.Config.Images[a.Image]
	if a.VerifiesPeer() {
		return a.SourceDigest
	}
	if a.Op == model.Repair || a.Op == model.Verify {
		return o.Disks[ref.Disk].Copies[ref.ID].SHA512
	}
	if !image.Checksum.IsZero() {
		return image.Checksum
	}
	return a.SourceDigest
}
