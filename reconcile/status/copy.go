package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// CopyStatus is the state of one copy on any node, together with what failed, what is running
// and what is planned. Sizes are in bytes.
type CopyStatus struct {
	Node string `json:"node"`
	Disk string `json:"disk"`
	// State combines the observed state with failures and running jobs. On a node that does
	// not respond it is unknown; Found has the last response.
	State              disk.State     `json:"state"`
	Progress           int            `json:"progress"` // 0..100; 100 is ready
	Done               int64          `json:"done,omitempty"`
	Total              int64          `json:"total,omitempty"`   // -1: not known
	Message            string         `json:"message,omitempty"` // why it has the state, or what is planned
	Code               plan.Code      `json:"code,omitempty"`    // of the planned action or of the reason for the state
	Until              time.Time      `json:"until,omitzero"`    // when a wait ends
	Format             disk.Format    `json:"format,omitempty"`
	Size               int64          `json:"size"`
	VirtualSize        int64          `json:"virtualSize"`
	RealSize           int64          `json:"realSize"`
	SHA512             ident.Digest   `json:"sha512"`
	SHA256             ident.Digest   `json:"sha256"`
	ManifestDigest     ident.Digest   `json:"chunks,omitzero"`    // SHA-256 of its chunk manifest
	Signature          disk.Signature `json:"signature,omitzero"` // who signed the bytes, as this node verified it; zero: it verified none
	Owned              bool           `json:"owned"`
	VerifiedAt         time.Time      `json:"verified,omitzero"`   // when its bytes last matched
	ReadBackAt         time.Time      `json:"readBackAt,omitzero"` // when its bytes were last read from the disk and matched
	DamagedAt          time.Time      `json:"damaged,omitzero"`    // when they last did not match; they may have been replaced since
	InUse              string         `json:"inUse,omitempty"`     // what uses it
	LastUsed           time.Time      `json:"lastUsed,omitzero"`
	SurplusSince       time.Time      `json:"unwantedSince,omitzero"`
	ReplacedAt         time.Time      `json:"replaced,omitzero"`   // when another generation was declared in its place
	Demand             *Demand        `json:"demand,omitempty"`    // replicas on the disk name it; null: none does
	Leaving            bool           `json:"leaving,omitempty"`   // withdrawn: it may be deleted at any moment
	Rejection          string         `json:"refuses,omitempty"`   // why the disk of another node takes no copy
	RejectionTemporary bool           `json:"later,omitempty"`     // the disk takes a copy once a first copy exists
	Unproven           bool           `json:"unproven,omitempty"`  // its node claims that it is ready, and sent other bytes or none
	Published          *plan.Reason   `json:"published,omitempty"` // why its node does nothing for it now, as it published that
	Running            bool           `json:"running,omitempty"`   // a job runs, here or on its node
	Job                plan.Op        `json:"job,omitempty"`       // the operation of the job, if it runs on this node
	BeingRead          bool           `json:"read,omitempty"`      // a running job reads it
	Sends              int            `json:"sends,omitempty"`     // peers and clients that this node sends it to now
	Sender             string         `json:"sender,omitempty"`    // the address of the peer that sends it to this node now
	// AwaitedSince is since when, in total, this node has waited for the node of the copy, because no
	// copy of the image was ready.
	AwaitedSince time.Time      `json:"awaitedSince,omitzero"`
	Found        *Found         `json:"found,omitempty"` // null: nothing was observed
	Failure      *FailureStatus `json:"try,omitempty"`   // the last failure
}

// Demand is a plan.Demand as JSON.
type Demand struct {
	By          string    `json:"by"`
	Since       time.Time `json:"since,omitzero"`
	OtherWriter time.Time `json:"otherWriter,omitzero"`
}

// Found is the observed state of a copy on its disk, without failures and running jobs.
type Found struct {
	State        disk.State `json:"state"`
	Message      string     `json:"message,omitempty"` // why the state is failed or unknown
	PartBytes    int64      `json:"partBytes,omitempty"`
	PartTotal    int64      `json:"partTotal,omitempty"` // 0: not known
	PartSourceID string     `json:"partFrom,omitempty"`  // disk.PartSource.ID of the partial file
	HasCfg       bool       `json:"hasCfg"`              // backing.cfg is readable and describes the file
	HasIndex     bool       `json:"hasIndex,omitempty"`  // an index of the copy is stored beside it
	// InUseRecorded: the record says that it is in use.
	InUseRecorded bool `json:"inUseRecorded,omitempty"`
	// ClockNode is the node whose clock gave lastUsed and unwantedSince.
	ClockNode string `json:"markedBy,omitempty"`
	// Declaration identifies the document that declares the image, or declared it last.
	Declaration disk.Declaration `json:"declaredIn,omitzero"`
}

// Absent reports whether nothing of the copy exists and no job runs. The entry then describes a
// desired copy, or a rejection.
func (c CopyStatus) Absent() bool {
	return !c.Running && (c.Found == nil || c.Found.State == disk.Pending && c.Found.PartBytes == 0)
}

// copyStatus returns the status of a copy, which need not exist.
func (b *builder) copyStatus(key ident.CopyRef) CopyStatus {
	c, there := b.view.Observed.Disks[key.Disk].Copies[key.ID]
	s := CopyStatus{
		Node: key.Disk.Node, Disk: key.Disk.Disk, State: c.State, Message: c.Message, Format: c.Format,
		Size: c.Size, VirtualSize: c.VirtualSize, RealSize: c.RealSize, SHA512: c.SHA512, SHA256: c.SHA256, ManifestDigest: c.ManifestDigest, Signature: c.Signature,
		Owned: c.Owned, VerifiedAt: c.VerifiedAt, ReadBackAt: c.ReadBackAt, DamagedAt: c.DamagedAt, InUse: c.UsedBy, LastUsed: c.LastUsed, SurplusSince: c.SurplusSince, ReplacedAt: c.ReplacedAt,
		Leaving: c.Leaving, Rejection: c.Rejects, RejectionTemporary: c.RejectsForNow, Unproven: c.Unproven, Running: b.view.Observed.Running[key], Job: b.view.Observed.Jobs[key].Action.Op, BeingRead: b.view.Observed.BeingRead[key],
	}
	if there {
		s.Found = &Found{c.State, c.Message, c.PartBytes, c.PartTotal, c.PartSourceID, c.HasCfg, c.HasIndex, c.InUseRecorded, c.ClockNode, c.Declaration}
	} else {
		s.State = disk.Pending
	}
	if demand, demanded := b.view.Observed.Disks[key.Disk].Demands[key.ID]; demanded {
		s.Demand = &Demand{demand.By, demand.Since, demand.OtherWriter}
	}
	if !c.Published.IsZero() {
		s.Published = &c.Published
	}
	switch {
	case c.State == disk.Ready:
		s.Progress = 100
	case c.PartTotal > 0:
		s.Done, s.Total = c.PartBytes, c.PartTotal
		s.Progress = percent(s.Done, s.Total)
	}
	if waited, ok := b.view.Observed.Awaited[key]; ok {
		s.AwaitedSince = b.view.Observed.Now.Add(-waited)
	}
	try, tried := b.view.Observed.Failures[key]
	if tried {
		s.Failure = newFailureStatus(try)
	}
	b.explain(&s, key, try)
	if under, ok := b.transfers[key]; ok {
		s.setTransfer(under)
	}
	return s
}

// explain sets why a copy has its state: on this node from the plan, on other nodes from what
// they published.
func (b *builder) explain(s *CopyStatus, ref ident.CopyRef, f plan.Failure) {
	if reason := b.view.unreachable(ref.Disk.Node); !reason.IsZero() {
		if s.Found != nil {
			reason.Text += "; it was " + string(s.State) + " then"
		}
		s.State, s.Message, s.Code, s.Progress = disk.Unknown, reason.Text, reason.Code, 0
		return
	}
	a := b.planned[ref]
	if b.view.Desired.Owns(ref.Disk) {
		s.setPlan(a)
	} else {
		s.setPeerState(b.view.Observed.Now, f, b.placements[ref.ID].delayed[ref.Disk])
		if s.Unproven {
			s.Code = plan.CodeUnproven
		}
	}
	if b.view.Observed.Disks[ref.Disk].Problem != "" && s.State == disk.Pending {
		s.State = disk.Unknown // nothing is known of the copies on the disk
	}
	if f.Attempts > 0 && s.State != disk.Ready && !s.awaitsDeletion(a) {
		s.State = disk.Failed
		if !describesFailure(a) {
			s.Message = f.Message
		}
	}
}

// awaitsDeletion reports whether the copy only waits for the end of its clean-up interval, as the planned action a of this
// node or its own node says. Then nothing tries again what failed, and nobody needs it.
func (s *CopyStatus) awaitsDeletion(a plan.Action) bool {
	return cmp.Or(a.Code, s.publishedCode()) == plan.CodeCleanupInterval
}

func (s *CopyStatus) publishedCode() plan.Code {
	if s.Published == nil {
		return ""
	}
	return s.Published.Code
}

// setPlan sets the action a that is planned for a copy of this node. An existing message stays
// unless the message of the action contains it.
func (s *CopyStatus) setPlan(a plan.Action) {
	s.Until, s.Code = a.Until, a.Code
	switch {
	case a.Op == "", s.Message != "" && !(a.Idle() && (describesCopy(a) || describesFailure(a))):
	case a.Idle():
		s.Message = a.Text
	default: // setTransfer replaces this when the job has started
		s.Message = fmt.Sprintf("%s: %s; waits for its turn", a.Op, a.Text)
	}
}

// describesCopy reports whether the reason of an action contains the message of the copy.
func describesCopy(a plan.Action) bool {
	switch cmp.Or(a.Cause, a.Code) {
	case plan.CodeCopyFailed, plan.CodeUnverifiedFile, plan.CodeDamagedInUse, plan.CodeUploadLost:
		return true
	}
	return false
}

// describesFailure reports whether the reason of an action contains the message of the failure.
func describesFailure(a plan.Action) bool {
	switch cmp.Or(a.Cause, a.Code) {
	case plan.CodeRetry, plan.CodeRejected, plan.CodeUploadFailed:
		return true
	}
	return false
}

// setPeerState sets what another node does with its copy, as far as the node published that. The
// argument delay is why the copy is delayed, zero if it is not.
func (s *CopyStatus) setPeerState(now time.Time, f plan.Failure, delay plan.Delay) {
	waits := f.Attempts > 0 && f.RetryAt.After(now) && !s.awaitsDeletion(plan.Action{})
	switch {
	case s.Leaving:
		s.Message = "withdrawn: its deletion is pending"
	case s.Running && s.State == disk.Pending:
		s.State, s.Message = disk.Starting, "a job runs on its node"
		if s.Done > 0 {
			s.State = disk.InProgress
		}
	case s.Running:
		s.Message = "a job runs on its node"
	case waits:
		s.Until = f.RetryAt
	case s.Rejection != "" && s.State == disk.Pending:
		s.Message, s.Code = "takes no copy: "+s.Rejection, plan.CodePeerRejects
	case !delay.IsZero():
		s.Message, s.Code, s.Until = delay.Text, delay.Code, delay.Until
	case s.Published != nil && s.Message == "":
		s.Message, s.Code = s.Published.Text, s.Published.Code
	case s.Found == nil:
		s.Message = "its node has not started it"
	}
}

// setTransfer sets the progress of a running job.
func (s *CopyStatus) setTransfer(t job.Transfer) {
	s.Message, s.Code = fmt.Sprintf("%s: %s", t.Action.Op, t.Action.Text), t.Action.Code
	s.Done, s.Total = t.Progress.Done.Load(), t.Progress.Total.Load()
	if !t.Action.Op.CreatesCopy() {
		return // the copy keeps its state during a verification, repair, backup or deletion
	}
	if sender := t.Progress.Sender.Load(); sender != nil {
		s.Sender = *sender
	}
	s.State, s.Progress = disk.Starting, percent(s.Done, s.Total)
	if s.Done > 0 {
		s.State = disk.InProgress
	}
}

// percent returns at most 99, since 100 means ready.
func percent(done, total int64) int {
	if total <= 0 {
		return 0
	}
	return int(min(99, float64(done)/float64(total)*100))
}

// FailureStatus is a plan.Failure as JSON. Its times are of the wall clock.
type FailureStatus struct {
	Op         plan.Op   `json:"action,omitempty"` // the operation that failed; "": any
	Attempts   int       `json:"attempts"`         // failed attempts; 0: the operation is only delayed
	Since      time.Time `json:"since,omitzero"`   // the first failed attempt
	RetryAt    time.Time `json:"until,omitzero"`   // the next attempt
	Message    string    `json:"message"`
	Final      bool      `json:"final,omitempty"` // only another declaration helps
	NeedsSpace int64     `json:"space,omitempty"` // free bytes that the next attempt waits for
	Disk       bool      `json:"disk,omitempty"`  // plan.FaultDisk
	Network    bool      `json:"link,omitempty"`  // plan.FaultNetwork
	// Unrepairable: a repair failed, so that the copy must be replaced.
	Unrepairable bool `json:"unrepairable,omitempty"`
	// Suspects are copies, as NODE/DISK/FOLDER, that gave wrong bytes when they were read.
	Suspects []string `json:"suspects,omitempty"`
}

// newFailureStatus converts f, whose times must be of the wall clock.
func newFailureStatus(f plan.Failure) *FailureStatus {
	s := &FailureStatus{
		Op: f.Op, Attempts: f.Attempts, Since: f.Since, RetryAt: f.RetryAt, Message: f.Message, Final: f.Final,
		NeedsSpace: f.NeedsSpace, Disk: f.Fault == plan.FaultDisk, Network: f.Fault == plan.FaultNetwork, Unrepairable: f.Unrepairable,
	}
	for _, ref := range f.Suspects {
		s.Suspects = append(s.Suspects, ref.String())
	}
	return s
}

// toFailure is the inverse of newFailureStatus.
func (s FailureStatus) toFailure() (plan.Failure, error) {
	f := plan.Failure{
		Op: s.Op, Fault: plan.FaultOf(s.Disk, s.Network), Attempts: s.Attempts, Since: s.Since, RetryAt: s.RetryAt,
		Message: s.Message, Final: s.Final, NeedsSpace: s.NeedsSpace, Unrepairable: s.Unrepairable,
	}
	for _, text := range s.Suspects {
		ref, err := ident.ParseCopyRef(text)
		if err != nil {
			return plan.Failure{}, err
		}
		f.Suspects = append(f.Suspects, ref)
	}
	return f, nil
}
