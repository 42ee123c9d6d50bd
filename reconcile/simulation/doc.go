// Package simulation has the parts of a cluster in memory: disks with copies, and what jobs do to
// them. Package scenario and the tests of this package run real Reconcilers on these disks.
//
// A Disk is one disk, wherever it is attached. It has the folders of copies (Copy), their users,
// and faults that can be set. Open returns it as a system.Disk. The files have no bytes, but
// the name of a content: equal names are equal bytes. A Library has the digests and the size of
// each content.
//
// Time, network and jobs belong to the users of this package, because they differ: in a scenario
// a job takes no time and every message arrives at once; in the tests below each of them takes
// simulated time, and can fail at every step. Both call the same methods of Disk for the effects
// of jobs: Fill, Verify, Repair and Removal.
//
// # The tests
//
// The tests of this package run many managers in one process: the real reconcile.Loop and
// Reconciler of each node. A seed decides everything that happens: which configurations are
// declared and when each node reads them, crashes, partitions, slow links, clocks that are set,
// lost, moved, full and failing disks, damage, volumes that start to use a copy, replicas on disks without a copy, uploads, and
// sources that fail. True time is simulated, so a seed replays exactly. The rules (those of
// docs/rules.md about deletions and first copies, and that the cluster converges to the desired state)
// are checked against the simulated disks themselves, which no manager sees.
//
// Reading order:
//
//	disk.go, content.go, effects.go   disks, contents, and the effects of jobs
//	queue_test.go       events, and fibers: the code of a node runs as a coroutine that pauses
//	                    wherever it waits for the simulated system
//	cluster_test.go     the cluster
//	system_test.go      the system.System of a node
//	node_test.go, directory_test.go, history_test.go   a machine: its process and rounds, its
//	                    config directory, what is noted about copies for the rules
//	net_test.go, job_test.go, deletion_test.go, upload_test.go   what takes time outside a round
//	fault_test.go, config_test.go, source_test.go, pairs_test.go   faults and changes
//	need_test.go        replicas that need an image on a disk without a copy, and their rules
//	generation_test.go  older generations that are kept, and syncs that read them
//	adversity_test.go, compromised_test.go   nodes that the others cannot rely on
//	deletion_record_test.go, deletion_rules_test.go, firstcopy_rules_test.go, clone_test.go,
//	placement_test.go, heal_test.go, converge_test.go   the rules
//	simulation_test.go, trace_test.go   one run, many runs, what a run prints
//	three_nodes_test.go, compromised_cases_test.go   single cases with fixed events
//	shared_test.go, idle_test.go   disks that show one folder; clusters without events
//	mutants_test.go     product code with one rule removed, which the simulation must detect
//
// To replay seed N of "make simulate", with all events:
//
//	go test ./reconcile/simulation -run 'TestCluster$' -v -cluster.seeds=1 -cluster.seed=N -cluster.kind=KIND -cluster.lines=100000
//
// Without KIND in "make simulate", leave out -cluster.kind: it changes the events of a seed. Without
// -cluster.seeds=1 it is the smaller cluster that "go test" runs with this seed.
//
// To add a fault, see the section "Simulation" of docs/development.md.
package simulation
