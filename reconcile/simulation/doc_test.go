// Package simulation runs many managers in one process: the real reconcile.Loop and Reconciler of
// each node, with disks, a network, clocks and jobs in memory. It contains tests only.
//
// A seed decides everything that happens: which configurations are declared and when each node
// reads them, crashes, partitions, slow links, wall clocks that are set, disks that disappear,
// swap places, fill up and fail, damaged copies, volumes that start to use a copy, uploads, and
// upstreams that fail. Time is simulated, so that a seed replays exactly. The simulation checks
// the rules S1 to S6 of the design, and that the cluster converges to what is declared. It checks
// them against the simulated world, which no manager can see.
//
// Reading order:
//
//	queue_test.go            events, and fibers: the code of a node runs as a coroutine that pauses
//	                         wherever it waits for the simulated system
//	world_test.go            disks and their image folders
//	system_test.go           the reconcile.System of a node
//	node_test.go             a machine: config directory, process, rounds
//	net_test.go, job_test.go, deletion_test.go, upload_test.go, source_test.go, clone_test.go
//	                         what takes time outside a round
//	config_test.go           configurations and their edits
//	fault_test.go            faults
//	pairs_test.go            pairs of events that must meet, and faults during a deletion
//	heal_test.go             the end of all faults
//	deletion_record_test.go  the facts that the rules for deletions compare with
//	deletion_rules_test.go   the rules for deletions
//	firstcopy_rules_test.go  the rules for first copies and clones
//	converge_test.go         the rules for a cluster without faults
//	placement_test.go        placement, written a second time
//	simulation_test.go       one run, many runs
//	trace_test.go            the events of a run, for people
//	three_nodes_test.go      cases without random faults
//	mutants_test.go          rules broken on purpose: the simulation must notice each
//
// To replay a seed: go test ./reconcile/simulation -run 'TestCluster$' -v -cluster.seed=N
package simulation
