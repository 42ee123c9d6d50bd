// Package upload receives images from people: the server of tus 1.0, an open protocol for
// resumable uploads, and a client for it.
//
//	POST /v1/uploads        creates a Session; a job opens its partial file    201, Location
//	PATCH /v1/uploads/ID    appends its body to the partial file               204, Upload-Offset
//	HEAD /v1/uploads/ID     the number of bytes, after an interruption         200, Upload-Offset
//	  (the response to the last PATCH is sent when the image is committed, or cannot be)
//	DELETE /v1/uploads/ID   discards the partial file                          204
//	OPTIONS                 what is supported: core, creation, creation-with-upload,
//	                        creation-defer-length, termination, checksum, expiration
//
// # Promises
//
//  1. Only the goroutine of the job, in Session.Fill, uses the disk.Part. Requests pass
//     it their deliveries, one at a time, and wait.
//  2. The partial file is the only state. Its source contains the id and the metadata of
//     the upload, so that an upload continues after a restart, after the last durable
//     byte.
//  3. A client that queries the offset is about to continue. Another PATCH in progress,
//     whose client may be gone for long, is then aborted.
//  4. A body with Upload-Checksum is verified before it is appended, so it must fit into
//     memory: at most 4 MiB. Other bodies are appended while they are received.
//  5. A request whose body stalls is aborted; the bytes stay. Only this image waits.
//  6. A wrong checksum, a wrong format, no space, or more bytes than announced end the
//     upload and discard its bytes. So do its termination, and 24 hours without a byte.
//
// # Extensions of tus
//
// A client need not send zeros: a PATCH without a body and with the header
// Upload-Zeros: N appends N zeros. GET /v1/uploads lists the uploads in progress. GET of
// one upload returns its state, for a while after its end too. Upload-Metadata must
// contain the image under the key name, and may contain its digest under sha512, sha256
// or checksum.
//
// # Reading order
//
// server.go (requests), session.go (one upload, and the job's side of it), sessions.go
// (the uploads of a node), header.go (parsing); then client.go and content.go, and
// local.go for an upload without a daemon.
package upload
