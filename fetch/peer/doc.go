// Package peer is the protocol between the managers of a cluster: the HTTP server that
// publishes the state and the copies of a node, the client that queries it, and the pull
// of an image from several peers at once.
//
// A manager sends requests and its peers respond. Nothing is pushed, and no node passes
// on what it received from another one.
//
// # The API
//
// All requests are GET, for callers with the role peer. Bodies are JSON unless stated
// otherwise, sizes are in bytes, and an error is {"error": "…"}.
//
//	/v1/state                                   State: the node, its disks and copies
//	/v1/state?wait=30s  If-None-Match: ETAG     long poll: the State as soon as its ETag
//	                                            changes, 304 if it does not in this time
//	/v1/images/NAME/copies                      State with the copies of this image name
//	                                            in all generations, observed after the
//	                                            request arrived
//	/v1/images/NAME/UUID/manifest?disk=DISK     the chunk manifest: the SHA-256 of each
//	                                            chunk, 32 bytes each
//	                                            (application/octet-stream)
//	/v1/images/NAME/UUID/data?disk=DISK         the bytes of the image; with
//	                                            Range: bytes=FROM-TO, one range of them
//
// Values that change all the time, such as free space and progress, are in a State but do
// not count for its ETag. A wait is limited to one minute. A State is compressed for
// clients that accept gzip.
//
//	400  invalid request
//	404  the node does not have the copy
//	409  the copy is not ready, is leaving, or has no chunk manifest
//	416  the range is outside the file
//	429  the sending limit is reached (three at a time for each image); Retry-After says
//	     when to try again
//	503  the node has not observed its disks yet, is overloaded, or shuts down
//
// The server closes the connection when a receiver does not read, when it reads slowly
// for over a minute while other requests get a 429, and when the file changes while it is
// sent.
//
// # Downloads
//
// People, browsers and other programs get an image with
//
//	/v1/images/NAME/download                    the declared generation; ?uuid=UUID: another
//	/v1/images/NAME/download?compress=gzip      compressed while it is sent; or zstd
//
// GET and HEAD, with single and multiple ranges, If-Range and If-None-Match. The ETag is
// strong: the SHA-512 of the image, which Repr-Digest has as well. The file name is
// NAME.raw or NAME.qcow2, with .gz or .zst appended if it is compressed. The compressed
// form is another file with other bytes, and has no ranges, ETag or length. Therefore it
// has an address of its own, and Accept-Encoding has no effect: browsers always send that
// header, and could not resume any download if it selected the compressed form. Downloads
// and peers share the sending limit. Each chunk is verified before it is sent: if one
// does not match the chunk manifest, the connection breaks and the copy is verified.
//
// # Pulling an image
//
//	Pull.Into(part):
//	  receive the chunk manifest that most sources name, from any of them
//	  keep the chunks of the partial file that match the manifest
//	  run one lane for each source, one per node, until all chunks are here:
//	    take a run of chunks: returned ones, else the next ones, else those of a slow lane
//	    request it, verify each chunk on arrival, put it into the window
//	  meanwhile: write the next chunk from the window, or zeros, to the partial file
//
// The partial file hashes the whole image while it is written, so chunks are written in
// order. Chunks that arrive out of order wait in a window of about 22 MiB. Zeros are never
// requested. When a source fails, only the chunk it was sending is lost, and the source is
// not used for 5 s, doubled after each further failure. The same holds for a source whose
// chunk another source delivers first. A busy source is queried again, as long as any peer
// sends bytes at least once an hour. The upstream gets a lane too, in two cases: no peer
// sends anything for 10 s; or the partial file waited for data during most of 10 s, and a
// probe of 8 MiB shows that the upstream alone is faster than all peers together.
//
// # Trust
//
// Any caller with the role peer may send requests, and a node trusts what a peer says
// about its own state. The response is still limited in size and checked for validity on
// arrival. Bytes are never trusted: a chunk manifest must have the digest that the state
// names, a chunk must have the hash in the manifest, and the whole file must have the
// digest of the image.
//
// # Reading order
//
//	state.go      State, Disk, Copy, Failure: the documents that nodes exchange
//	server.go     Server and Node: routes, long polls, fresh observations
//	cache.go      StateCache: the published State and its ETag
//	send.go       data and manifest routes: send limit, ranges, slow receivers
//	download.go   the download route, which verifies what it sends
//	client.go     Client: connections, authentication, timeouts; query.go: its requests
//	decode.go     decoding and checking of a State from a peer
//	poll.go       Poller: follows the State of all peers by long polls
//	pull.go       Pull: manifest, partial file, single chunks for a repair
//	scheduler.go  which sources a pull uses: lanes, backoff, upstream
//	window.go     which lane requests which chunks
//	lane.go       requests to one source, and their measured rate
package peer
