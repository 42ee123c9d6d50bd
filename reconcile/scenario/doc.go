// Package scenario runs the scenarios of users (command test): scripts that change a
// simulated cluster and check the actions of the managers and their result.
//
// A scenario is a testscript file with the commands of this package. It cannot run
// programs, and it cannot use files outside its own folder: each script is checked before
// it runs, so that scenarios of strangers are safe to run.
//
// The cluster in memory (type world) has the nodes of one configuration with their disks, the
// sources of the images, and a clock. At the start every declared disk is mounted and empty,
// every node is up, every source delivers, and no copy is in use.
//
// The manager of each node (type node) is a real reconcile.Reconciler. It has the disks of
// package simulation, and a network and jobs that take no time. Managers work one after the
// other: each converges as far as it can without the others. They repeat this until no manager
// can do anything more. Then the clock moves to the next deadline of any manager. A node that is
// down has no manager; a new manager starts when the node is up again.
//
// A scenario leaves out the bytes of images (each source delivers the right ones), the duration
// of transfers, and events during a job: no job is ever interrupted, and no message is lost. The
// tests of package simulation have all of these.
//
// Reading order: runner.go (Runner, results), check.go (what a script may contain),
// commands.go (the form of a command), cluster_commands.go (all commands); world.go, node.go,
// network.go, jobs.go, contents.go (the cluster); setup.go, restore.go (its changes); converge.go,
// explain.go.
package scenario
