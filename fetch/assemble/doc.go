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
// One goroutine, that of Run, plans ahead and appends to the Sink, in order: a chunk without a copy where that is possible,
// other pieces through a reader. A second one, the scheduler, gives the next segments to providers. Each request is a
// goroutine of its own, which ends with its request.
//
// # Promises
//
//  1. A missing segment with a hash is appended only if it matches. Bytes of a seed are compared with the seed's own chunk
//     manifest. Bytes that an index says to be in a seed are compared with the hash of the segment, if the
//     plan is by a chunk manifest (FindMoved). The digest of the whole file decides in any case.
//  2. At most Window bytes are requested, or received and not appended. A request that is longer waits while the window is
//     full. The memory does not depend on the size of the image.
//  3. Each missing byte is received once, except for: the segment that a failing request was receiving; what was not
//     appended when the process ends; and the segment for which Run waits, which another provider may be asked for, too, when
//     it could have delivered it in the meantime. The slower one then loses its request, so that none can hold up the transfer.
//  4. A provider that fails is left alone for a while, and longer after each further failure (Health). A busy one is asked
//     again when it has said. Candidates of the reserve send only what the others do not.
//  5. Seeds are only read. A damaged or unreadable chunk of a seed is reported and fetched.
//
// # Decorators
//
// Counted and Limited change a Provider, each in one respect. A new provider needs Open only, which ends a request that
// stalls, and gets accounting and limits from them, and retries and backoff from the Health.
//
// # Reading order
//
//	provider.go   Provider, Candidate, decorators
//	health.go     Health: failures and backoff
//	plan.go       Segment, Plan, the plan by a chunk manifest; index.go: that by an index; seed.go: copies on this node
//	moved.go      content at other places in seeds, for a plan by a chunk manifest
//	assembly.go   Assembly: plan, append in order
//	queue.go      the missing segments, and the window
//	schedule.go   which provider is asked for which segments
package assemble
