// Package peer is both ends of what the managers of a cluster say to each other.
// A manager asks, the other answers; nothing is pushed, and nobody is told what a
// third one said.
//
// # The API
//
// All of it is GET, for callers with the role peer. Bodies are JSON unless it says
// otherwise, sizes are in bytes, an error is {"error": "…"}.
//
//	/v1/state                                   State: the node, its disks and copies
//	/v1/state?wait=30s  If-None-Match: ETAG     the same as soon as it is another one,
//	                                            304 when it is not by then
//	/v1/images/NAME/copies                      State with the copies of that name in all
//	                                            generations, looked at after the question
//	/v1/images/NAME/UUID/manifest?disk=DISK     the sums of its chunks, 32 bytes each
//	                                            (application/octet-stream)
//	/v1/images/NAME/UUID/data?disk=DISK         its bytes; with Range: bytes=FROM-TO, one
//	                                            range, the bytes of that
//
// What changes all the time, such as free space and progress, is in a State but not
// in its ETag. A wait is a minute at most, and a State is compressed for those who
// accept gzip.
//
// A copy that is not there is 404; one that is not ready, or is leaving, or has no
// manifest, is not sent: 409. A node sends an image at most three times at once; 429
// with Retry-After says when to come back. Who does not take what is sent, or takes
// it slowly for over a minute while others are turned away, loses the connection. It
// breaks too when the file changes while it is sent. A range that is not in the file
// is 416, what is asked wrongly 400, and 503 says to ask again later.
//
// # Downloads
//
// People, browsers and other programs get an image by
//
//	/v1/images/NAME/download                    the declared generation; ?uuid=UUID another
//	/v1/images/NAME/download?compress=gzip      packed while it is sent; zstd likewise
//
// GET and HEAD, with ranges, several of them too, If-Range and If-None-Match: the ETag
// is strong, the SHA-512 of the image, which Repr-Digest has as well. The name of the
// file is NAME.raw or NAME.qcow2, with .gz or .zst behind it if it is packed. What is
// packed is another file with other bytes, without ranges, ETag and length; so it has to
// be asked for by its address, and an Accept-Encoding changes nothing: browsers send
// that always, and could resume no download any more. The slots are those for peers.
// Each chunk is checked before it is sent: where one is not as the manifest says the
// connection breaks, and the copy is verified.
//
// # Pulling an image
//
//	Pull.Into(part):
//	  the manifest that most sources name, of any that has it
//	  keep what part holds if its chunks are those of the manifest
//	  a lane for each source, one a node: until all is here
//	    take a run of chunks: abandoned ones, else the next, else those of a slow lane
//	    ask for it, check each chunk as it comes, put it into the window
//	  meanwhile: next chunk out of the window, or zeros, into part
//
// The part hashes the whole as it passes, so that chunks go into it in order, and what
// came out of order waits in a window of about 22 MiB. Zeros are never asked for. A
// source that fails costs what it was sending, and is set aside for 5 s, doubling; one
// that another one has to overtake is too. A busy one is asked again, for as long as no
// hour goes by in which nobody brings anything. The origin is a lane as well: while no
// peer brings anything for 10 s, or when in 10 s the part mostly waited and a probe of
// 8 MiB shows that the origin alone is faster than all peers together.
//
// # Trust
//
// Whoever has the role may ask, and what an answer says of the state of a node is
// believed; it is bounded and checked for sense on arrival all the same. Bytes are
// not believed. A manifest has to have the digest that the state names, a chunk the
// sum that the manifest names, and the whole file the digest of the image.
package peer
