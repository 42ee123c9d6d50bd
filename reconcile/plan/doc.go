// Package plan is the planner: a pure function from the desired and the observed state to the
// actions that lead from one to the other.
//
//	plan := desired.Plan(observed)
//
// It does no I/O and reads no clock; the observed state has the time (R2). Two plans of equal
// values are equal. A dry run prints the value that a daemon executes.
//
// # How a plan is made
//
//	for each declared image:
//	    rank the disks that match it          rank.go       same on every node
//	    walk over them: targets, rejections   placement.go  P1 to P5
//	    inspect existing files                plan.go       verify, adopt, repair
//	    surplus copies: delete or keep        surplus.go    S1 to S5
//	    each target without a ready copy:     sync.go
//	        copy from this node or from peers
//	        the first target, if no copy exists: use the source
//	                                          firstcopy.go, clone.go  F1 to F7
//	        or wait for other nodes           quorum.go
//	for each owned copy of another image:     orphans.go    S6
//	one scrub                                 scrub.go
//	suspensions                               suspend.go
//
// An action has a Reason: a stable code for programs and a text for people (reason.go).
//
// # What else follows from the same state
//
// ConfirmDeletion plans once more on the responses to direct queries before a copy is deleted
// (confirm.go). UsageUpdates returns what must be recorded beside copies (usage.go). UploadTo
// accepts or rejects an upload (upload.go). Cluster plans for all nodes (cluster.go). SavedPlan
// restricts an execution to an approved plan (saved.go).
//
// # Safety
//
// Unknown input deletes nothing: a node that does not respond, a disk that cannot be read, an
// invalid configuration, a clock that was set. The rules S1 to S6 are decided in surplus.go and
// orphans.go, and nowhere else.
//
// Reading order: desired.go, observed.go, action.go, plan.go, placement.go, sync.go, surplus.go.
package plan
