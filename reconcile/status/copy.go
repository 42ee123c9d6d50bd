package status

import (
	"cmp"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// CopyStatus is the state of one copy on any node, together with what failed, what is running
// and what is planned. Sizes are in bytes.
type CopyStatus struct {
	Node string `json:"node"`
	Disk string `json:"disk"`
	// Copy is what the node of the copy says about it, with Failure, Need and Job. The JSON has the State and the Message of
	// Copy in Observed.
	model.Copy
	// State combines the observed state with failures and running jobs. On a node that does
	// not respond it is unknown.
	State    model.State `json:"state"`
	Message  string      `json:"message,omitempty"`  // why it has the state, or what is planned
	Observed *Observed   `json:"observed,omitempty"` // null: nothing was observed
	Progress int         `json:"progress"`           // 0..100; 100 is ready
	Done     int64       `json:"done,omitempty"`
	Total    int64       `json:"total,omitempty"` // -1: not known
	Code     model.Code  `json:"code,omitempty"`  // of the planned action or of the reason for the state
	Until    time.Time   `json:"until,omitzero"`  // when a wait ends

	Running   bool   `json:"running,omitempty"`   // a job runs, here or on its node
	BeingRead bool   `json:"beingRead,omitempty"` // a running job reads the copy
	Sends     int    `json:"sends,omitempty"`     // number of peers and clients to which this node sends the copy now
	Sender    string `json:"sender,omitempty"`    // the address of the peer that sends the copy to this node now
	// AwaitedSince is the time of the status minus the total time for which this node has waited for
	// the node of the copy, because no copy of the image was ready.
	AwaitedSince time.Time `json:"awaitedSince,omitzero"`
}

// Observed is the state of a copy on its disk, without failures and running jobs.
type Observed struct {
	State   model.State `json:"state"`
	Message string      `json:"message,omitempty"` // why the state is failed or unknown
}

// Absent reports whether nothing of the copy exists and no job runs. The entry then describes a
// desired copy, or a rejection.
func (c CopyStatus) Absent() bool {
	return !c.Running && (c.Observed == nil || c.Observed.State == model.Pending && c.PartBytes == 0)
}

// NewCopyStatus returns the status of a copy as it was observed on a disk.
func NewCopyStatus(on ident.DiskRef, c model.Copy) CopyStatus {
	s := CopyStatus{Node: on.Node, Disk: on.Disk, Copy: c, State: c.State, Message: c.Message}
	switch {
	case c.State == model.Ready:
		s.Progress = 100
	case c.PartTotal > 0:
		s.Done, s.Total = c.PartBytes, c.PartTotal
		s.Progress = percent(s.Done, s.Total)
	}
	return s
}

// copyStatus returns the status of a copy, which need not exist.
func (b *builder) copyStatus(key ident.CopyRef) CopyStatus {
	o := b.view.Observed
	c, exists := o.Disks[key.Disk].Copies[key.ID]
	if !exists {
		c = model.Copy{ID: key.ID, State: model.Pending}
	}
	s := NewCopyStatus(key.Disk, c)
	if exists {
		s.Observed = &Observed{c.State, c.Message}
	}
	s.Running, s.BeingRead, s.Job = o.Running[key], o.BeingRead[key], o.Jobs[key].Action.Op
	if need, needed := o.Disks[key.Disk].Needs[key.ID]; needed {
		s.Need = &need
	}
	if waited, ok := o.Awaited[key]; ok {
		s.AwaitedSince = o.Now.Add(-waited)
	}
	try, tried := o.Failures[key]
	if tried {
		s.Failure = &try
	}
	b.explain(&s, key, try)
	if under, ok := b.transfers[key]; ok {
		s.setTransfer(under)
	}
	return s
}

// explain sets why a copy has its state: on this node from the plan, on other nodes from what
// they published.
func (b *builder) explain(s *CopyStatus, ref ident.CopyRef, f model.Failure) {
	if reason := b.view.unreachable(ref.Disk.Node); !reason.IsZero() {
		if s.Observed != nil {
			reason.Text += "; it was " + string(s.State) + " then"
		}
		s.State, s.Message, s.Code, s.Progress = model.Unknown, reason.Text, reason.Code, 0
		return
	}
	a := b.planned[ref]
	if b.view.Desired.Owns(ref.Disk) {
		s.setPlan(a)
	} else {
		s.setPeerState(b.view.Observed.Now, f, b.placements[ref.ID].Delayed[ref.Disk])
		if s.Unproven {
			s.Code = plan.CodeUnproven
		}
	}
	if b.view.Observed.Disks[ref.Disk].Problem != "" && s.State == model.Pending {
		s.State = model.Unknown // nothing is known of the copies on the disk
	}
	if f.Attempts > 0 && s.State != model.Ready && !s.awaitsDeletion(a) {
		s.State = model.Failed
		if !describesFailure(a) {
			s.Message = f.Message
		}
	}
}

// awaitsDeletion reports whether the copy only waits for the end of its clean-up interval. Its planned action a says so, or
// its own node. Such a copy is not needed, and a failed action on it is not tried again.
func (s *CopyStatus) awaitsDeletion(a plan.Action) bool {
	return cmp.Or(a.Code, s.Reason.Code) == plan.CodeCleanupInterval
}

// setPlan sets the action a that is planned for a copy of this node. An existing message stays
// unless the text of the action contains it.
func (s *CopyStatus) setPlan(a plan.Action) {
	s.Until, s.Code = a.Until, a.Code
	switch {
	case a.Op == "", s.Message != "" && !(a.Idle() && (describesCopy(a) || describesFailure(a))):
	case a.Idle():
		s.Message = a.Text
	default: // setTransfer replaces the message when the job has started
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

// setPeerState sets what another node does with its copy, as far as the node published that. delay is
// why the copy is delayed; zero: it is not.
func (s *CopyStatus) setPeerState(now time.Time, f model.Failure, delay plan.Delay) {
	waits := f.Attempts > 0 && f.RetryAt.After(now) && !s.awaitsDeletion(plan.Action{})
	switch {
	case s.Leaving:
		s.Message = "withdrawn: its deletion is pending"
	case s.Running && s.State == model.Pending:
		s.State, s.Message = model.Starting, "a job runs on its node"
		if s.Done > 0 {
			s.State = model.InProgress
		}
	case s.Running:
		s.Message = "a job runs on its node"
	case waits:
		s.Until = f.RetryAt
	case s.Rejection != "" && s.State == model.Pending:
		s.Message, s.Code = "takes no copy: "+s.Rejection, plan.CodePeerRejects
	case !delay.IsZero():
		s.Message, s.Code, s.Until = delay.Text, delay.Code, delay.Until
	case !s.Reason.IsZero() && s.Message == "":
		s.Message, s.Code = s.Reason.Text, s.Reason.Code
	case s.Observed == nil:
		s.Message = "its node has not begun to create it"
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
	s.State, s.Progress = model.Starting, percent(s.Done, s.Total)
	if s.Done > 0 {
		s.State = model.InProgress
	}
}

// percent returns at most 99, since 100 means ready.
func percent(done, total int64) int {
	if total <= 0 {
		return 0
	}
	return int(min(99, float64(done)/float64(total)*100))
}
