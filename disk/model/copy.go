// Package model has what a node says about itself: its disks, the copies on them, what failed, what runs, and why nothing is
// done. The same types are the listing of a disk, the state that nodes exchange, the input of the planner, and the status
// document, which is also the input of the offline planner. A JSON name is the name of the Go field.
//
// The types promise nothing about the values of another node: the reader of a state checks these values (package peer).
//
// Times are wall times of the node that says them. The reader of a state translates them to its own clock.
package model

import (
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// State is the state of a copy, in Longhorn's terms.
type State string

// The states of a copy. Package disk never returns Starting or InProgress, which only the process that writes a partial
// file knows: it returns Pending for a copy with a partial file.
const (
	Pending    State = "pending"
	Starting   State = "starting"
	InProgress State = "in-progress"
	Ready      State = "ready"
	Failed     State = "failed"
	Unknown    State = "unknown" // a file exists without a valid record: it must be verified
)

// Copy is one copy: one image folder on one disk. A Copy that is Pending and not owned may have no folder: it says, for example,
// why the disk takes no copy. Sizes are in bytes.
//
// Other nodes receive each field with a JSON name that ForPeers does not clear. The fields have three groups: what the disk has, what the manager of
// the node adds, and what another node finds out about the copy.
type Copy struct {
	ID ident.ID `json:"id"`
	// Folder is the identity of the folder; zero: the copy is on another machine.
	Folder FolderID `json:"-"`

	State State `json:"state"`
	// Message is why the state is Failed or Unknown, or a warning about a ready copy.
	Message string `json:"message,omitempty"`

	Format      Format `json:"format,omitempty"`
	Size        int64  `json:"size,omitempty"`        // of the file
	VirtualSize int64  `json:"virtualSize,omitempty"` // that a guest sees; 0: not known
	RealSize    int64  `json:"realSize,omitempty"`    // allocated on the disk

	// SHA512 is the established digest: always known for a ready copy.
	SHA512 ident.Digest `json:"sha512,omitzero"`
	// SHA256 is zero unless a SHA-256 was declared when the copy was last verified.
	SHA256 ident.Digest `json:"sha256,omitzero"`
	// ManifestDigest is the SHA-256 of the chunk manifest. It is zero if the copy has no manifest, or
	// if the manifest does not match the record.
	ManifestDigest ident.Digest `json:"manifestDigest,omitzero"`
	// HasIndex: an index of the copy is stored beside it.
	HasIndex bool `json:"hasIndex,omitempty"`
	// Signature is who signed the bytes, as this node verified it; zero: it verified none.
	Signature Signature `json:"signature,omitzero"`
	// CfgExpected is the expectedChecksum of backing.cfg.
	CfgExpected ident.Digest `json:"-"`
	HasCfg      bool         `json:"hasCfg,omitempty"` // backing.cfg is readable and describes this file

	Owned      bool      `json:"owned,omitempty"`     // this program created or adopted it
	VerifiedAt time.Time `json:"verifiedAt,omitzero"` // when all its bytes last matched its digest
	ReadBackAt time.Time `json:"readBackAt,omitzero"` // when all its bytes were last read from the disk and matched
	// DamagedAt is the time when a file of this copy was last found damaged. The file may have been
	// repaired or replaced since then.
	DamagedAt time.Time `json:"damagedAt,omitzero"`
	// BackupID identifies the last complete backup; "": none is known.
	BackupID string `json:"-"`
	Usage

	// PartBytes is an upper bound of the bytes that a resume keeps. It keeps all of them if the hashes
	// of all chunks match.
	PartBytes int64    `json:"partBytes,omitempty"`
	PartTotal int64    `json:"partTotal,omitempty"` // size of the complete file; 0: not known
	PartKind  PartKind `json:"partKind,omitempty"`  // the source of the partial file

	// UsedBy describes the replica on its disk that names the copy, or the process that has it open; "": none is known. Open
	// files are looked for only if the copy is surplus.
	UsedBy string `json:"usedBy,omitempty"`
	// Leaving: the copy is withdrawn and may be deleted at any moment. No node counts on it.
	Leaving bool `json:"leaving,omitempty"`
	// SameAs is another disk of this node that shows the same folder, by a bind mount. Then this Copy is not a further copy,
	// and does not count. Zero: there is no such disk.
	SameAs ident.DiskRef `json:"sameAs,omitzero"`
	// Need is the need of replicas on the disk for the image, whether it is ready there or not; nil: no replica names it.
	Need *Need `json:"need,omitempty"`
	// Job is the operation of the running job; "": no job runs.
	Job Op `json:"job,omitempty"`
	// Rejection is why the disk takes no copy; "": it takes a copy. RejectionTemporary: it takes a copy once a first copy exists.
	Rejection          string `json:"rejection,omitempty"`
	RejectionTemporary bool   `json:"rejectionTemporary,omitempty"`
	// Failure describes the failed attempts since the last success; nil: there are none.
	Failure *Failure `json:"failure,omitempty"`
	// Reason is why its node does nothing for the copy now; zero: the node acts, or nothing is to be done.
	Reason Reason `json:"reason,omitzero"`
	// Mark is a hash of the node and of the secret of the mark Node.Mark. It shows that the node has seen the mark in the folder of
	// the copy.
	Mark string `json:"mark,omitempty"`

	// Unproven: its node claims that the copy is ready, but has sent other bytes or no proof to this node. Then State is
	// Unknown.
	Unproven bool `json:"unproven,omitempty"`
}

// Usage is what is recorded beside a copy because it cannot be derived later.
type Usage struct {
	// Declaration identifies the document that declares the image, or declared it last.
	Declaration Declaration `json:"declaration,omitzero"`
	// LastUsed and SurplusSince are times of the clock of the node ClockNode: a disk may be moved to another node.
	LastUsed     time.Time `json:"lastUsed,omitzero"`
	SurplusSince time.Time `json:"surplusSince,omitzero"`
	ClockNode    string    `json:"clockNode,omitempty"`
	// ReplacedAt is when another generation of the image was declared in place of this one. Zero: this generation is declared,
	// or the time is not known.
	ReplacedAt time.Time `json:"replacedAt,omitzero"`
	// InUseRecorded: the image was in use when a manager last observed it. Copy.UsedBy is the present use. If the use ended
	// while no manager ran, the next manager counts the unused time from its own start.
	InUseRecorded bool `json:"inUseRecorded,omitempty"`
}

// String returns the folder, the state and the reason, for messages.
func (c Copy) String() string {
	if c.Message == "" {
		return fmt.Sprintf("%s is %s", c.ID, c.State)
	}
	return fmt.Sprintf("%s is %s: %s", c.ID, c.State, c.Message)
}

// HasDigest reports whether the copy is ready and its bytes have the digest.
func (c Copy) HasDigest(d ident.Digest) bool {
	return c.State == Ready && !d.IsZero() && (c.SHA512 == d || c.SHA256 == d)
}

// ForPeers returns the copy without the fields that only its own node uses, or that another node finds out.
func (c Copy) ForPeers() Copy {
	c.HasIndex, c.Signature, c.CfgExpected, c.HasCfg, c.BackupID, c.Declaration = false, Signature{}, ident.Digest{}, false, "", Declaration{}
	c.ClockNode, c.InUseRecorded, c.SameAs, c.Unproven = "", false, ident.DiskRef{}, false
	if c.PartKind != PartFromPeers {
		c.PartKind = PartFromSource
	}
	if c.Need != nil {
		c.Need = &Need{By: c.Need.By, Since: c.Need.Since}
	}
	if f := c.Failure; f != nil {
		c.Failure = &Failure{Op: f.Op, Fault: f.Fault, Attempts: f.Attempts, Since: f.Since, RetryAt: f.RetryAt, Message: f.Message, Final: f.Final}
	}
	return c
}

// Times returns the times of the copy, but not those of its failure.
func (c *Copy) Times() []*time.Time {
	times := []*time.Time{&c.VerifiedAt, &c.ReadBackAt, &c.DamagedAt, &c.LastUsed, &c.SurplusSince, &c.ReplacedAt}
	if c.Need != nil {
		times = append(times, &c.Need.Since, &c.Need.OtherWriter)
	}
	return times
}

// PartKind is where the bytes of a partial file come from.
type PartKind string

// The kinds of partial files: only the client can resume an upload, and a copy from peers is not a first copy.
const (
	PartFromSource PartKind = ""
	PartFromUpload PartKind = "upload"
	PartFromPeers  PartKind = "peers"
)

// Need is the need of replicas on a disk for an image.
type Need struct {
	By string `json:"by"` // the replicas, for people
	// Since is when the metadata of one of the replicas last changed. Zero: not known.
	Since time.Time `json:"since,omitzero"`
	// OtherWriter is when Longhorn's manager last wrote to a temporary file of the image on the disk; zero:
	// there is none.
	OtherWriter time.Time `json:"otherWriter,omitzero"`
}

// Format is the format of an image file. The empty Format means that no format is declared:
// the format is detected from the bytes.
type Format string

// The formats that an image may have.
const (
	Raw   Format = "raw"
	QCOW2 Format = "qcow2"
)

// ParseFormat parses a declared format; "" is the empty Format.
func ParseFormat(s string) (Format, error) {
	switch f := Format(s); f {
	case "", Raw, QCOW2:
		return f, nil
	}
	return "", fmt.Errorf("format %q: use \"raw\" or \"qcow2\"", s)
}

// Signature is who signed the bytes of a copy. The zero value is no signature.
type Signature struct {
	Scheme  string    `json:"scheme"`            // the kind of signature, such as "openpgp"
	Signer  string    `json:"signer"`            // identifies the key
	Time    time.Time `json:"time,omitzero"`     // when it was signed, as the signer says; zero: not known
	Warning string    `json:"warning,omitempty"` // a word for what is odd about it; "": nothing
}

// String returns the signature for a message.
func (s Signature) String() string {
	text := s.Scheme + " " + s.Signer
	if !s.Time.IsZero() {
		text += " on " + s.Time.UTC().Format(time.DateOnly)
	}
	if s.Warning != "" {
		text += " (" + s.Warning + ")"
	}
	return text
}

// Declaration identifies the document of the config directory that declares an image. It is stored in
// the record of a copy, so that a restarted manager knows which file declared the image of an orphan.
type Declaration struct {
	File string `json:"file"` // relative to the config directory, or a CUE package as ./folder:package
	// Kind and Name are those of the manifest. Both are empty for the native form.
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
	// ConfigMap is the name of the ConfigMap that contains the document, or empty.
	ConfigMap string `json:"configMap,omitempty"`
}

// FolderID identifies a folder on this machine.
type FolderID struct{ Device, Inode uint64 }
