// Package peer is the protocol between the managers of a cluster. It contains the HTTP server that
// publishes the state and the copies of a node, the client that queries it, and the pull of an image
// from several peers at once.
//
// A manager sends requests and its peers respond. No node sends data without a request, and no node
// forwards data that it received from another node.
//
// # The API
//
// All requests are GET requests from callers with the role peer. Bodies are JSON unless stated
// otherwise, sizes are in bytes, and the body of an error is {"error": "…"}.
//
//	/v1/state                                   model.Node: the node, its disks and copies
//	/v1/state?wait=30s  If-None-Match: ETAG     long poll: the state when its ETag
//	                                            changes, or 304 after the wait
//	/v1/images/NAME/copies                      model.Node with the copies of this image name
//	                                            in all generations, observed after the
//	                                            request arrived; with ?mark=NAME, each copy has a
//	                                            hash of the secret of the mark NAME in its folder
//	/v1/images/NAME/UUID/manifest?disk=DISK     the chunk file: a header with the
//	                                            algorithm, and the hash of each chunk
//	                                            (application/octet-stream)
//	/v1/images/NAME/UUID/index?disk=DISK        the index (package caibx), if the copy has one
//	/v1/images/NAME/UUID/data?disk=DISK         the bytes of the image; with
//	                                            Range: bytes=FROM-TO, one range of them
//	/v1/images/NAME/UUID/data?disk=DISK&proof=chunk   with Range: exactly one chunk, which
//	                                            the node reads past the page cache and
//	                                            verifies, as the proof that it has the bytes
//
// Values that change all the time, such as free space and progress, are part of a state but do not
// change its ETag. A wait is limited to one minute. A state is compressed for clients that accept
// gzip.
//
//	400  invalid request
//	404  the node does not have the copy
//	409  the copy is not ready, is leaving, or has no chunk manifest
//	416  the range is outside the file
//	429  the sending limit is reached (three at a time for each image); Retry-After says
//	     when to try again
//	503  the node has not observed its disks yet, is overloaded, or shuts down
//
// The server closes the connection when a receiver does not read, and when the file changes or the copy is
// withdrawn during the send. It also closes the connection of a receiver that reads slowly for more than a
// minute while other requests get a 429.
//
// # Downloads
//
// Users, browsers and other programs download an image with
//
//	/v1/images/NAME/download                    the declared generation, or generation ?uuid=UUID
//	/v1/images/NAME/download?compress=gzip      compressed while it is sent; or zstd
//
// These routes support GET and HEAD, one range, If-Range and If-None-Match. A request for several
// ranges gets the whole file. The ETag is strong: it is the SHA-512 of the image, which is also in
// Repr-Digest. The file name is NAME.raw or NAME.qcow2, with .gz or .zst appended if it is compressed.
// The compressed form is a different file and has no ranges, ETag or length. It therefore has its own
// address, and Accept-Encoding has no effect: browsers always send this header, and could not resume a
// download if it selected the compressed form. Downloads and peers share the sending limit. Each chunk
// is verified before it is sent: if a chunk does not match the chunk manifest, the server closes the
// connection and requests the verification of the copy.
//
// # Pulling an image
//
//	Pull.Into(part):
//	  receive the chunk manifest whose digest most sources have
//	  keep the chunks of the partial file that match the manifest
//	  append the rest by package assemble: from seeds on this node, else from the peers
//
// The pull does not request chunks that a seed has at the same place: a new generation costs only its changes. If much
// is still missing, the pull requests the index from a peer, and finds content that moved in the seeds. At most eight
// peers send at the same time, and at most 22 MiB are requested or wait to be written. When a source fails, only the
// chunk that it was sending is lost. The source is not used for 5 s; this time doubles after each further failure.
// A busy source is asked again as long as some peer has sent bytes within the last hour. The upstream is read, too, if
// no peer sends anything for 10 s.
//
// # Trust
//
// Any caller with the role peer may send requests. A node trusts the state that a peer publishes about
// itself, except before it deletes a copy: then other nodes must prove that they have the bytes
// (Client.Prove). The size of a response is limited, and its values are validated. Bytes are never
// trusted: a chunk manifest must have the digest in the state, a chunk must have the hash in the
// manifest, and the whole file must have the digest of the image.
//
// # Reading order
//
//	server.go     Server and Node: routes, long polls, fresh observations
//	cache.go      StateCache: the published state and its ETag
//	send.go       data and manifest routes: send limit, ranges, slow receivers
//	prove.go      one chunk as the proof that a node has a copy, both ends
//	download.go   the download route, which verifies each chunk before it sends it
//	client.go     Client: connections, authentication, timeouts; query.go: its requests
//	decode.go     decoding and checking of a state from a peer; scope.go: which part of it the reader
//	              needs
//	poll.go       Poller: keeps the state of all peers up to date by long polls
//	pull.go       Pull: manifest, partial file, single chunks for a repair; peers as sources of an assembly
//	moved.go      the index of an image, to find content that moved
package peer
