// Package peer is the protocol between the managers of a cluster. It contains the HTTP server that
// publishes the state and the copies of a node, the client that queries it, and the pull of an image
// from several peers at once.
//
// A manager sends requests and its peers respond. No node sends data without a request, and no node
// forwards data that it received from another node.
//
// # Requests
//
// docs/http-api.md has the requests of peers and the downloads of images by users, with all responses. The ETag of a state
// leaves out what changes all the time, such as free space and progress. The compressed form of a download has its own address
// and no ETag: browsers always send Accept-Encoding, and could not resume a download if it selected the compressed form.
// Downloads and peers share the sending limit.
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
