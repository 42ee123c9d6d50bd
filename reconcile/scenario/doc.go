// Package scenario runs the scenarios of users (command test): scripts that change a
// simulated cluster and check what the managers make of it.
//
// A scenario is a testscript file with the commands of this package. It cannot run
// programs, and it cannot use files outside its own folder: each script is checked before
// it runs, so that scenarios of strangers are safe to run.
//
// The simulated cluster (type world) has the nodes of one configuration with their disks,
// the sources of the images, and a clock. The plans are those of package reconcile. At the
// start every declared disk is mounted and empty, every node is up, every source delivers,
// and no copy is in use. One round works like this:
//
//	every node that is up records the usage of its copies, and plans
//	each copy to create exists at once, or fails as its source says
//	each copy to delete is deleted if the other nodes confirm it
//
// The world leaves out the bytes of images (each copy has the right ones), the duration and
// the number of transfers, and events during a round: no job is ever interrupted, and all
// nodes observe the same state. The simulation in the tests of package reconcile has these.
//
// Reading order: runner.go (Runner, results), check.go (what a script may contain),
// commands.go (the form of a command), cluster_commands.go (all commands), world.go, setup.go
// (events), round.go, execute.go, explain.go.
package scenario
