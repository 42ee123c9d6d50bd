// Package chaos runs a cluster of real daemons through a bad day, and checks from outside that nothing
// is lost.
//
// A seed decides a schedule of faults: which fault, when, where and for how long. The faults are those
// of plan.go: killed, stopped and paused daemons; silent and refusing networks; full, vanishing, lost,
// read-only and rotting disks; damaged metadata; stale, broken and empty config directories; an
// upstream that cuts, stalls, lies and fails; volumes that come and go; and people who change the
// declarations, clean up, verify, retry, upload and download in the middle of all that.
//
// Each daemon is a process of the real binary with TLS, a certificate and a network namespace of its
// own, and two disks of limited size in memory. The suite uses the documented interface only: the
// commands, the HTTP API, the metrics and the layout of the disks. It imports no code of the product.
//
// # What it promises
//
// The observer knows the bytes of each generation, reads the disks directly, several times a second,
// and reports a violation if
//
//   - a file with a final name has other bytes than its generation, unless the suite flipped them;
//   - the program deletes the last true copy of an image, or of a generation that every node
//     declares, or a copy below the declared number;
//   - the program deletes or replaces a copy that a volume or a process uses;
//   - a file changes that the program does not own;
//   - a node says that a copy is ready, and the copy has not been there for seconds;
//   - a download or an upload succeeds with other bytes;
//   - a daemon exits, panics, reports a data race, or completes no round for a minute.
//
// After each cycle all faults are healed. Then all nodes have to converge within a bound: each declared
// image is ready everywhere with exactly its number of copies, all plans are empty, and the disks
// have nothing else of the program on them; each backing.cfg and chunk manifest describes its bytes. Memory, descriptors and goroutines are compared with those
// before the first fault. At the end each daemon has to exit with 0 after SIGINT.
//
// # What it cannot see
//
//   - A seed decides the schedule, but not the order in which processes run: a run with the same seed
//     differs in details, and a failure may need several runs to come back.
//   - A copy that appears and disappears between two looks at a disk. A deletion and a fault of the
//     suite within the same moments cannot be put in order; the report counts what was excused.
//   - Undetected bit rot is no violation: a copy whose bytes the suite flipped counts as a copy
//     until somebody reads it. The suite flips bytes only while enough other copies are true.
//   - Power failures (all disks are in memory), wrong clocks, compromised peers, restores, exports, clones,
//     backups and encryption. Scenarios and the simulation have these.
//
// Reading order: run.go is the course of a run; plan.go decides the events; image.go and config.go know what is
// declared; network.go, disk.go and daemon.go are the machines; setup.go creates them, and cluster.go has them
// together; fault.go and user.go execute events; observer.go and look.go check; converge.go waits after the faults;
// report.go.
package chaos
