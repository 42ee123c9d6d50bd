// Package upload receives images from users. It contains a server of tus 1.0, an open protocol for
// resumable uploads, and a client. docs/http-api.md has the requests. POST creates a Session, whose job opens the partial file;
// the response to the last PATCH is sent when the image is committed, or the upload has failed.
//
// # Promises
//
//  1. Only one goroutine at a time uses the disk.Part: a request that has received it from
//     Session.part, or the job when Session.Fill has returned.
//  2. The partial file is the only state. Its source contains the id and the metadata of the
//     upload. After a restart, the upload therefore resumes after the last durable byte.
//  3. A query of the offset aborts a PATCH that is still in progress on another connection: the
//     client resumes the upload, and the client of the PATCH may not exist any more.
//  4. A body with Upload-Checksum is verified before it is appended, so it must fit into
//     memory: at most 4 MiB. Other bodies are appended while they are received.
//  5. A request whose body stalls is aborted, and its received bytes are kept. A stall delays
//     only this image.
//  6. A wrong checksum, a wrong format or a lack of space end the upload and discard its bytes. A
//     termination by the client, and 24 hours without a byte, have the same effect.
//  7. A request with more bytes than are missing does not complete the image. The upload stays.
//
// # Extensions of tus
//
// A client need not send zeros: a PATCH request without a body and with the header Upload-Zeros: N
// appends N zeros. A browser repeats a request by itself if it has reused a connection that breaks
// before the response. Therefore a PATCH request with the header Upload-Overlap: 1 may begin
// before the offset: the bytes that the upload has already are skipped. GET /v1/uploads lists the
// uploads in progress. GET of one upload returns its state, for a while even after it has ended.
// Upload-Metadata must contain the name of the image under the key name, and may contain its digest
// under sha512, sha256 or checksum.
//
// # Reading order
//
// server.go (requests), session.go (one upload, and its job), sessions.go (the uploads of a node),
// header.go (parsing); then client.go and content.go, and local.go for an upload without a daemon.
package upload
