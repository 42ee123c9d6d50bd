// Package reconcile runs the reconcile loop of a node: it observes the disks and the peers, plans,
// publishes the state of the node, and executes the plan.
//
//	each round:
//	    desired  := the configuration                          (plan.Desired)
//	    observed := the disks of this node, and the last state
//	                that each peer published                   (Reconciler.Observe)
//	    write the usage of copies that changed                 (recordUsage)
//	    plan     := desired.Plan(observed)                     (pure: package plan)
//	    publish the state of this node                         (publish)
//	    start the actions of the plan that do not run, and stop jobs that are not in it
//
// Nothing is carried from round to round except what cannot be derived: what failed and when to
// retry it (failures.go), which deliberately ends with the process, and usage that could not be
// written yet (usage.go). Which actions follow from which observation is documented in package
// plan; how a job executes an action, in package job.
//
// # Without a coordinator
//
// Every node plans for its own disks by the same rules, from the same configuration and from what
// each other node publishes about itself. If two nodes see different things, the worst result is
// one copy too many: a deletion is not based on published states but on direct queries. See
// deletion in delete.go.
//
// # Reading order
//
//	system.go      the interfaces to everything outside: clocks, disks, peers, jobs
//	local.go       their implementations for a machine; package simulation has others
//	loop.go        the loop of a daemon: events, rounds. reload.go: the config directory.
//	               requests.go: what people and clients request
//	reconciler.go  one round. observe.go, disks.go, peers.go: its observation
//	jobs.go        starting, stopping and ending jobs; delete.go: deletions
//	publish.go, host.go   what peers see: the published state, and direct queries
package reconcile
