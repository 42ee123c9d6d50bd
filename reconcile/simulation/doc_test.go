// Package simulation runs many managers in one process: the real reconcile.Loop and Reconciler of
// each node, over disks, a network, clocks and jobs in memory. It has tests only.
//
// A seed decides everything that happens: which configurations are declared and when each node
// reads them, crashes, partitions, slow links, clocks that are set, lost, moved, full and failing
// disks, damage, volumes that start to use a copy, uploads, and sources that fail. True time is
// simulated, so a seed replays exactly. The rules (S1 to S6 of the design, and that the cluster
// comes to rest with what is declared) are checked against the simulated world itself, which no
// manager sees.
//
// Read in this order:
//
//	queue_test.go       events, and fibers: the code of a node runs as a coroutine that pauses
//	                    wherever it waits for the simulated system
//	world_test.go       drives and what is in their folders
//	system_test.go      the reconcile.System of a node
//	node_test.go        a machine: config directory, process, rounds
//	net_test.go, job_test.go, deletion_test.go, upload_test.go   what takes time outside a round
//	fault_test.go, config_test.go, pairs_test.go   what goes wrong and what changes
//	removal_test.go, rules_test.go, first_test.go, rest_test.go  the rules
//	simulation_test.go  one run, many runs
//	mutants_test.go     rules broken on purpose, to see that the simulation notices
//
// To replay a seed: go test ./reconcile/simulation -run 'TestCluster$' -v -cluster.seed=N
package simulation
