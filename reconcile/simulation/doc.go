// Package simulation has the parts of a cluster in memory: disks with copies, and what jobs do to
// them. Package scenario and the tests of this package run real Reconcilers on these disks.
//
// A Disk is one disk, wherever it is attached. It has the folders of copies (Copy), their users,
// and faults that can be set. Open returns it as a system.Disk. The files have no bytes, but
// the name of a content: equal names are equal bytes. A Library has the digests and the size of
// each content.
//
// Time, network and jobs belong to the users of this package, because they differ: in a scenario
// a job takes no time and every message arrives at once; in the tests of this package each of them takes
// simulated time, and can fail at every step. Both call the same methods of Disk for the effects
// of jobs: Fill, Verify, Repair and Removal.
package simulation
