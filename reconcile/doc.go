// Package reconcile decides what has to happen on the disks of a node, and does
// it.
//
//	each round:
//	    desired  := what the config directory declares        (schema.Config)
//	    observed := what lies on the disks of this node, and
//	                what every other node said last           (Look)
//	    for each mark in desired.Marks(observed): write it beside the copy
//	    plan     := desired.Plan(observed)                    (pure)
//	    tell the other nodes what is there and under way      (publish)
//	    start the actions of plan that are not under way; stop those that are
//	    under way and not in plan any more
//
// Nothing is carried from round to round but what could not be derived: what
// failed and when to try it again, which is lost with the process on purpose.
//
// # What a plan follows from
//
// The disks that match an image's selectors are ranked by rendezvous hashing, the
// same on every node. One walk over that list says which disks should have a copy:
// those whose copy is used keep it; the first minNumberOfCopies that can take one
// want it, and the disks that the image names. What is left over is surplus.
//
// A wanted disk without a ready copy gets one in the cheapest way there is: by
// verifying a file that lies there (adopt, verify), by rewriting the damaged chunks of
// one that failed (repair), by copying one that another disk of this node or others
// have ready (sync), and only on the first disk in rank from the source (download).
// Nothing is fetched for the others meanwhile: they wait. Who has begun goes on,
// however well another disk ranks, until it fails.
//
// # Without a coordinator
//
// Every node plans for its own disks by the same rules, from the same configuration
// and from what each other node says of itself. Ranks need no agreement. A node that
// is silent keeps its place for recoveryWaitInterval, then the next in rank acts for
// it. Where two nodes see different things, the worst is a copy too many, because a
// deletion does not go by what was seen but by what is asked: see withdraw.go.
//
// # What is never done
//
// A copy goes only if nothing uses it, enough other disks have the image ready by
// answers given after it was withdrawn and under the same configuration,
// the clean-up interval has passed since it was last used and since it was first
// unwanted, and the configuration is wholly valid. An image that left the
// configuration goes by the same rules, and not when so many left at once that it
// looks like an accident (pruneLimit). What cannot be told counts against
// deleting.
package reconcile
