// Package assemble is the engine that puts an image together from places that have parts of it. A sync from peers, a restore, a
// clone with encryption, a download by an index, the repair of a chunk and the download of an image from a node are the
// same loop with other segments and providers.
//
//	segment    a part of the image: offset, length and hash
//	plan       where the bytes of each segment are: zeros, a seed, an earlier place in the image, or missing
//	provider   a place that has missing bytes; one method opens a range of them
//	candidate  a provider with its name, its host, and how it may be used
//	health     what is known about each provider: failures, backoff, pace
//
// The path of a missing segment:
//
//	plan -> queue -> request to the least busy provider -> body, through the decorators of its provider
//	     -> compared with the hash -> queue -> partial file
//
// The goroutine of Run plans ahead and appends to the Sink in order: whole chunks without copying their bytes where that is
// possible, other pieces through a reader. A second goroutine, the scheduler, gives the next segments to providers. Each
// request has its own goroutine, which ends with the request.
//
// # Promises
//
//  1. A missing segment with a hash is appended only if it matches the hash. Bytes of a seed are compared with the chunk
//     manifest of the seed. If the plan is by a chunk manifest, bytes that an index finds in a seed (FindMoved) are also
//     compared with the hash of the segment. The digest of the whole file decides in any case.
//  2. At most Window bytes are requested, or received and not appended. A longer request waits while the window is full.
//     The memory does not depend on the size of the image.
//  3. Each missing byte is received once, with three exceptions: the segment that a failing request was receiving; what was
//     not appended when the process ended; and the segment for which Run waits. A second provider is asked for that segment,
//     too, if it could have delivered it in the meantime. The slower request is cancelled, so no provider holds up the transfer.
//  4. A provider that fails is not used for a while, and for longer after each further failure (Health). A busy provider is
//     asked again after the time that it has named. Candidates of the reserve send only what the other candidates do not.
//  5. Seeds are only read. A damaged or unreadable chunk of a seed is reported and fetched.
//
// # Decorators
//
// Counted and Limited change a Provider, each in one respect. A new provider implements only Open, whose bodies end if they
// stall. Counted adds accounting, Limited a limit of the rate, and Health retries and backoff.
//
// # Reading order
//
//	provider.go   Provider, Candidate, decorators
//	health.go     Health: failures and backoff
//	plan.go       Segment, Plan, the plan by a chunk manifest; index.go: the plan by an index; seed.go: copies on this node
//	moved.go      content at other places in seeds, for a plan by a chunk manifest
//	assembly.go   Assembly: plan, append in order
//	queue.go      the missing segments, and the window
//	schedule.go   which provider is asked for which segments
package assemble
