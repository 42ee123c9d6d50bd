// Package reconcile runs the reconcile loop of a node: it observes the disks and the peers, plans,
// publishes the state of the node, and executes the plan.
//
//	each round:
//	    desired  := the configuration                          (plan.Desired)
//	    observed := the disks of this node, and the last state
//	                that each peer published                   (Reconciler.Observe)
//	    write the usage of copies that changed                 (recordUsage)
//	    decide about the deletions whose queries have ended    (decideDeletions)
//	    plan     := plan.NewRound(desired, observed).Plan()                     (pure: package plan)
//	    stop the jobs that must end, and select the actions to start
//	    publish the state of this node                         (publish)
//	    begin the selected actions                             (startJob)
//
// A round keeps nothing of the round before except what cannot be derived again: running jobs,
// failures with the time of the next attempt, usage that could not be written yet, for how long a
// problem or a wait for other nodes has lasted, and the evidence against claims of other nodes. All of it
// is lost with the process, on purpose. Package plan documents which actions follow from which
// observation, and package job how a job executes an action.
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
//	system            (package) the interfaces to everything outside, and their implementations for a machine
//	loop.go           the loop of a daemon: events and rounds. requests.go, retry.go, upload.go: the requests of
//	                  clients. config (package): which content of the config directory is applied
//	reconciler.go     one round. observe.go, disks.go, peers.go: its observation. usage.go, clock.go and evidence
//	                  (package): what lasts from round to round
//	jobs.go           starting, stopping and ending jobs. delete.go: deletions. marks.go, proofs.go: which copies
//	                  are other files, and have their bytes
//	replicawatch.go   the events of new replicas
//	pace.go           what keeps n images from costing n rounds
//	serve             (package) the state that peers poll, and their direct queries
package reconcile
