package reconcile

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// CopyStatus is one copy, on any node. Sizes are in bytes.
type CopyStatus struct {
	Node string `json:"node"`
	Disk string `json:"disk"`
	// State is what lies there together with what failed and what is under way. Of a
	// node that does not answer it is unknown; Found has what that said last.
	State       disk.State  `json:"state"`
	Progress    int         `json:"progress"` // 0..100; 100 is ready
	Done        int64       `json:"done,omitempty"`
	Total       int64       `json:"total,omitempty"` // -1: not known
	Message     string      `json:"message,omitempty"`
	Until       time.Time   `json:"until,omitzero"` // when a wait ends
	Format      disk.Format `json:"format,omitempty"`
	Size        int64       `json:"size"`
	VirtualSize int64       `json:"virtualSize"`
	RealSize    int64       `json:"realSize"`
	SHA512      disk.Digest `json:"sha512"`
	SHA256      disk.Digest `json:"sha256"`
	Chunks      disk.Digest `json:"chunks,omitzero"` // SHA-256 of its chunk manifest
	Owned       bool        `json:"owned"`
	Verified    time.Time   `json:"verified,omitzero"` // when its bytes were last right
	Damaged     time.Time   `json:"damaged,omitzero"`  // when they last were not; they may have been replaced since
	InUse       string      `json:"inUse,omitempty"`   // by what
	LastUsed    time.Time   `json:"lastUsed,omitzero"`
	Unwanted    time.Time   `json:"unwantedSince,omitzero"`
	Leaving     bool        `json:"leaving,omitempty"` // withdrawn: it may be gone the next moment
	Refuses     string      `json:"refuses,omitempty"` // why the disk of another node takes no copy
	Later       bool        `json:"later,omitempty"`   // it takes one as soon as there is a first copy
	Running     bool        `json:"running,omitempty"` // work on it is under way, here or on its node
	Syncing     bool        `json:"syncing,omitempty"` // and that is a sync to a disk of this node
	Read        bool        `json:"read,omitempty"`    // work under way reads it
	Found       *Found      `json:"found,omitempty"`   // null: nothing lies there
	Try         *TryStatus  `json:"try,omitempty"`     // what failed last, if anything did
}

// Found is a copy as it lies on its disk, whatever failed and is under way.
type Found struct {
	State     disk.State `json:"state"`
	Message   string     `json:"message,omitempty"` // why it is failed or unknown
	PartBytes int64      `json:"partBytes,omitempty"`
	PartTotal int64      `json:"partTotal,omitempty"` // 0: not known
	PartFrom  string     `json:"partFrom,omitempty"`  // a hash of where the bytes of the part come from, "upload", or "chunks" and from other nodes
	HasCfg    bool       `json:"hasCfg"`              // backing.cfg is readable and is about the file
	// InUseRecorded: it was used when that was last written down beside it.
	InUseRecorded bool `json:"inUseRecorded,omitempty"`
	// MarkedBy is the node by whose clock it was last used and is unwanted.
	MarkedBy string `json:"markedBy,omitempty"`
}

// Absent reports whether there is nothing of the copy yet, and nobody is at work on it:
// it is wanted there, or there is something to say of why it is not. Of a disk on
// another node that refuses it, State is pending all the same.
func (c CopyStatus) Absent() bool {
	return !c.Running && (c.Found == nil || c.Found.State == disk.Pending && c.Found.PartBytes == 0)
}

// copy tells of a copy, or of the place for one.
func (t *telling) copy(key Key) CopyStatus {
	c, there := t.Observed.Disks[key.Disk].Copies[key.ID]
	s := CopyStatus{
		Node: key.Disk.Node, Disk: key.Disk.Disk, State: c.State, Message: c.Message, Format: c.Format,
		Size: c.Size, VirtualSize: c.VirtualSize, RealSize: c.RealSize, SHA512: c.SHA512, SHA256: c.SHA256, Chunks: c.ManifestDigest,
		Owned: c.Owned, Verified: c.VerifiedAt, Damaged: c.DamagedAt, InUse: c.Using, LastUsed: c.LastUsed, Unwanted: c.SurplusSince,
		Leaving: c.Leaving, Refuses: c.Refuses, Later: c.Later, Running: t.Observed.Running[key], Syncing: t.Observed.Syncing[key], Read: t.Observed.Read[key],
	}
	if there {
		s.Found = &Found{c.State, c.Message, c.PartBytes, c.PartTotal, c.PartSourceID, c.HasCfg, c.InUseRecorded, c.ClockNode}
	} else {
		s.State = disk.Pending
	}
	switch {
	case c.State == disk.Ready:
		s.Progress = 100
	case c.PartTotal > 0:
		s.Done, s.Total = c.PartBytes, c.PartTotal
		s.Progress = percent(s.Done, s.Total)
	}
	try, tried := t.Observed.Tries[key]
	if tried {
		s.Try = tryStatus(try)
	}
	t.explain(&s, key, try)
	if under, ok := t.under[key]; ok {
		s.follow(under)
	}
	return s
}

// explain says why a copy is as it is: on this node from the plan, on others from what
// these said.
func (t *telling) explain(s *CopyStatus, key Key, try Try) {
	if silence := t.silence(key.Disk.Node); silence != "" {
		if s.Found != nil {
			silence += "; it was " + string(s.State) + " then"
		}
		s.State, s.Message, s.Progress = disk.Unknown, silence, 0
		return
	}
	if t.Desired.mine(key.Disk) {
		s.plan(t.plan[key])
	} else {
		s.hear(t.Observed.Now, try)
	}
	if try.Attempts > 0 && s.State != disk.Ready {
		s.State = disk.Failed
		if !strings.Contains(s.Message, try.Message) { // what is planned may say that, and what to do
			s.Message = try.Message
		}
	}
}

// plan says what is planned about a copy of this node.
func (s *CopyStatus) plan(a Action) {
	switch {
	case s.Message != "" && a.Idle() && strings.Contains(a.Reason, s.Message):
		s.Message = a.Reason
	case s.Message != "" || a.Kind == "":
	case a.Idle():
		s.Message = a.Reason
	default: // follow says more, once it is under way
		s.Message = fmt.Sprintf("%s: %s; waits for its turn", a.Kind, a.Reason)
	}
	s.Until = a.Until
}

// hear says what another node does about a copy, as far as it tells.
func (s *CopyStatus) hear(now time.Time, try Try) {
	waits := try.Attempts > 0 && !try.Final && try.Until.After(now)
	switch {
	case s.Leaving:
		s.Message = "withdrawn: it is about to go, or to stay"
	case s.Running && s.State == disk.Pending:
		s.State, s.Message = disk.Starting, "under way on its node"
		if s.Done > 0 {
			s.State = disk.InProgress
		}
	case s.Running:
		s.Message = "its node works on it"
	case waits:
		s.Until = try.Until
	case s.Refuses != "" && s.State == disk.Pending:
		s.Message = "takes no copy: " + s.Refuses
	case s.Found == nil:
		s.Message = "its node has not begun with it"
	}
}

// follow shows a transfer as far as it is now.
func (s *CopyStatus) follow(t Transfer) {
	s.Message = fmt.Sprintf("%s: %s", t.Action.Kind, t.Action.Reason)
	s.Done, s.Total = t.Progress.Done.Load(), t.Progress.Total.Load()
	if !t.Action.Kind.copies() {
		return // it stays what it is meanwhile
	}
	s.State, s.Progress = disk.Starting, percent(s.Done, s.Total)
	if s.Done > 0 {
		s.State = disk.InProgress
	}
}

// percent never says 100: that is for what is ready.
func percent(done, total int64) int {
	if total <= 0 {
		return 0
	}
	return int(min(99, float64(done)/float64(total)*100))
}
