package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// CopyStatus is one copy, on any node. Sizes are in bytes.
type CopyStatus struct {
	Node string `json:"node"`
	Disk string `json:"disk"`
	// State is what lies there together with what failed and what is under way. Of a
	// node that does not answer it is unknown; Found has what that said last.
	State       disk.State     `json:"state"`
	Progress    int            `json:"progress"` // 0..100; 100 is ready
	Done        int64          `json:"done,omitempty"`
	Total       int64          `json:"total,omitempty"` // -1: not known
	Message     string         `json:"message,omitempty"`
	Until       time.Time      `json:"until,omitzero"` // when a wait ends
	Format      disk.Format    `json:"format,omitempty"`
	Size        int64          `json:"size"`
	VirtualSize int64          `json:"virtualSize"`
	RealSize    int64          `json:"realSize"`
	SHA512      disk.Digest    `json:"sha512"`
	SHA256      disk.Digest    `json:"sha256"`
	Chunks      disk.Digest    `json:"chunks,omitzero"` // SHA-256 of its chunk manifest
	Owned       bool           `json:"owned"`
	Verified    time.Time      `json:"verified,omitzero"` // when its bytes were last right
	Damaged     time.Time      `json:"damaged,omitzero"`  // when they last were not; they may have been replaced since
	InUse       string         `json:"inUse,omitempty"`   // by what
	LastUsed    time.Time      `json:"lastUsed,omitzero"`
	Unwanted    time.Time      `json:"unwantedSince,omitzero"`
	Leaving     bool           `json:"leaving,omitempty"` // withdrawn: it may be gone the next moment
	Refuses     string         `json:"refuses,omitempty"` // why the disk of another node takes no copy
	Later       bool           `json:"later,omitempty"`   // it takes one as soon as there is a first copy
	Running     bool           `json:"running,omitempty"` // work on it is under way, here or on its node
	Syncing     bool           `json:"syncing,omitempty"` // and that is a sync to a disk of this node
	Read        bool           `json:"read,omitempty"`    // work under way reads it
	Found       *Found         `json:"found,omitempty"`   // null: nothing lies there
	Failure     *FailureStatus `json:"try,omitempty"`     // what failed last, if anything did
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
	// Declaration identifies the document that declares the image, or declared it last.
	Declaration disk.Declaration `json:"declaredIn,omitzero"`
}

// Absent reports whether there is nothing of the copy yet, and nobody is at work on it:
// it is wanted there, or there is something to say of why it is not. Of a disk on
// another node that refuses it, State is pending all the same.
func (c CopyStatus) Absent() bool {
	return !c.Running && (c.Found == nil || c.Found.State == disk.Pending && c.Found.PartBytes == 0)
}

// copyStatus tells of a copy, or of the place for one.
func (t *builder) copyStatus(key plan.CopyRef) CopyStatus {
	c, there := t.Observed.Disks[key.Disk].Copies[key.ID]
	s := CopyStatus{
		Node: key.Disk.Node, Disk: key.Disk.Disk, State: c.State, Message: c.Message, Format: c.Format,
		Size: c.Size, VirtualSize: c.VirtualSize, RealSize: c.RealSize, SHA512: c.SHA512, SHA256: c.SHA256, Chunks: c.ManifestDigest,
		Owned: c.Owned, Verified: c.VerifiedAt, Damaged: c.DamagedAt, InUse: c.UsedBy, LastUsed: c.LastUsed, Unwanted: c.SurplusSince,
		Leaving: c.Leaving, Refuses: c.Rejects, Later: c.RejectsForNow, Running: t.Observed.Running[key], Syncing: t.Observed.Syncing[key], Read: t.Observed.BeingRead[key],
	}
	if there {
		s.Found = &Found{c.State, c.Message, c.PartBytes, c.PartTotal, c.PartSourceID, c.HasCfg, c.InUseRecorded, c.ClockNode, c.Declaration}
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
	try, tried := t.Observed.Failures[key]
	if tried {
		s.Failure = newFailureStatus(try)
	}
	t.explain(&s, key, try)
	if under, ok := t.under[key]; ok {
		s.setTransfer(under)
	}
	return s
}

// explain says why a copy is as it is: on this node from the plan, on others from what
// these said.
func (t *builder) explain(s *CopyStatus, key plan.CopyRef, try plan.Failure) {
	if silence := t.unreachable(key.Disk.Node); silence != "" {
		if s.Found != nil {
			silence += "; it was " + string(s.State) + " then"
		}
		s.State, s.Message, s.Progress = disk.Unknown, silence, 0
		return
	}
	if t.Desired.Owns(key.Disk) {
		s.setPlan(t.plan[key])
	} else {
		s.setPeerState(t.Observed.Now, try)
	}
	if try.Attempts > 0 && s.State != disk.Ready {
		s.State = disk.Failed
		if !strings.Contains(s.Message, try.Message) { // what is planned may say that, and what to do
			s.Message = try.Message
		}
	}
}

// setPlan says what is planned about a copy of this node.
func (s *CopyStatus) setPlan(a plan.Action) {
	switch {
	case s.Message != "" && a.Idle() && strings.Contains(a.Reason, s.Message):
		s.Message = a.Reason
	case s.Message != "" || a.Op == "":
	case a.Idle():
		s.Message = a.Reason
	default: // follow says more, once it is under way
		s.Message = fmt.Sprintf("%s: %s; waits for its turn", a.Op, a.Reason)
	}
	s.Until = a.Until
}

// setPeerState says what another node does about a copy, as far as it tells.
func (s *CopyStatus) setPeerState(now time.Time, try plan.Failure) {
	waits := try.Attempts > 0 && !try.Final && try.RetryAt.After(now)
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
		s.Until = try.RetryAt
	case s.Refuses != "" && s.State == disk.Pending:
		s.Message = "takes no copy: " + s.Refuses
	case s.Found == nil:
		s.Message = "its node has not begun with it"
	}
}

// setTransfer shows a transfer as far as it is now.
func (s *CopyStatus) setTransfer(t job.Transfer) {
	s.Message = fmt.Sprintf("%s: %s", t.Action.Op, t.Action.Reason)
	s.Done, s.Total = t.Progress.Done.Load(), t.Progress.Total.Load()
	if !t.Action.Op.CreatesCopy() {
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

// FailureStatus is what is remembered of a failure.
type FailureStatus struct {
	Action   plan.Op   `json:"action,omitempty"` // that failed; "": whatever is tried
	Attempts int       `json:"attempts"`         // 0: it was only put off
	Since    time.Time `json:"since,omitzero"`   // of the first failure in a row
	Until    time.Time `json:"until,omitzero"`   // of the next attempt
	Message  string    `json:"message"`
	Final    bool      `json:"final,omitempty"` // only another declaration helps
	Space    int64     `json:"space,omitempty"` // free bytes that the next attempt waits for
	Disk     bool      `json:"disk,omitempty"`  // the trouble is the disk's
	Link     bool      `json:"link,omitempty"`  // it may be the way from the node to the source
	// Unrepairable: a repair failed, so the copy has to be replaced.
	Unrepairable bool `json:"unrepairable,omitempty"`
	// Suspects are copies, as NODE/DISK/FOLDER, that were read and gave other bytes
	// than their own.
	Suspects []string `json:"suspects,omitempty"`
}

func newFailureStatus(t plan.Failure) *FailureStatus {
	s := &FailureStatus{
		Action: t.Op, Attempts: t.Attempts, Since: t.Since, Until: t.RetryAt, Message: t.Message,
		Final: t.Final, Space: t.NeedsSpace, Disk: t.Disk, Link: t.Link, Unrepairable: t.Unrepairable,
	}
	for _, key := range t.Suspects {
		s.Suspects = append(s.Suspects, key.String())
	}
	return s
}

// toFailure is what tryStatus was made of.
func (s FailureStatus) toFailure() (plan.Failure, error) {
	t := plan.Failure{
		Op: s.Action, Attempts: s.Attempts, Since: s.Since, RetryAt: s.Until, Message: s.Message,
		Final: s.Final, NeedsSpace: s.Space, Disk: s.Disk, Link: s.Link, Unrepairable: s.Unrepairable,
	}
	for _, text := range s.Suspects {
		key, err := plan.ParseCopyRef(text)
		if err != nil {
			return plan.Failure{}, err
		}
		t.Suspects = append(t.Suspects, key)
	}
	return t, nil
}
