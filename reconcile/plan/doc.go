// Package plan is the planner: a pure function from the desired and the observed state to the
// actions that lead from one to the other.
//
//	plan := NewRound(desired, observed).Plan()
//
// It does no I/O and reads no clock: the observed state has the time (R2). Only NewDesired reads the working directory, to complete
// a relative path. Equal states give equal plans. A dry run prints the value that a daemon executes.
//
// # How a plan is made
//
//	index the state of one round              round.go      Round
//	for each declared image:
//	    find its ready copies and sources     imagestate.go imageState
//	    rank the disks that match it          rank.go       ranking: same on every node
//	    walk over them: targets, rejections   placement.go, rejection.go  P1 to P5
//	    add disks with replicas that need it  need.go       G2: their volumes cannot start
//	    inspect existing files                imageplan.go  imagePlanner: verify, adopt, repair
//	    surplus copies: delete or keep        surplus.go    surplusPlanner
//	    what stops a deletion                 deletion.go   undesired: S1 to S6
//	        if nothing uses or needs them     usage.go      U1 to U8
//	        after what replaces them is read  deletion.go   S5
//	    older generations to keep             surplus.go    keptGenerations: V6
//	    each target without a ready copy:     target.go     targetPlanner
//	        copy from this node or from peers
//	        the first target, if no copy exists: use the source,
//	        or wait for other nodes           firstcopy.go  F1 to F7
//	        for a limited time                placement.go  F3
//	    too few disks: say why                explain.go
//	for each owned copy of another image:     deletion.go   orphanPlanner: S6
//	one scrub                                 imageplan.go
//	suspensions                               suspend.go
//	running jobs go on, or end for a reason   running.go    R5
//
// Data flows in this order. An imageState only answers queries about what was observed; a
// placement is computed from it and does not change; the planners read both and return actions.
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
// invalid configuration, a clock that was set. Every deletion comes from undesired.decide in
// deletion.go, which applies the rules S1 to S6. Other parts of the planner only prevent deletions: planSurplusCopy (V6) and
// planSurplus (inspections) in surplus.go, keepSources in plan.go, conflict in imageplan.go, suspend.go.
//
// Reading order: desired.go, observed.go, action.go, plan.go, imageplan.go, imagestate.go,
// placement.go, target.go, surplus.go, deletion.go.
package plan
