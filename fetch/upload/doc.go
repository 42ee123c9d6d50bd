// Package upload takes images from people: the server's side of tus 1.0, an open
// protocol for uploads that survive interruptions, and a client for it.
//
//	POST /v1/uploads        a Session is announced, a job opens a part for it   201, Location
//	PATCH /v1/uploads/ID    a delivery: its body goes into the part             204, Upload-Offset
//	HEAD /v1/uploads/ID     how far it is, after an interruption                200, Upload-Offset
//	  (the last PATCH is answered when the image is committed, or says why it is not)
//	DELETE /v1/uploads/ID   the part is discarded                               204
//	OPTIONS                 what is understood: core, creation, creation-with-upload,
//	                        creation-defer-length, termination, checksum, expiration
//
// What follows from it:
//
//  1. A disk.Part is for one goroutine: that of the job, in Session.Fill. Requests hand
//     it what they bring, one at a time, and wait.
//  2. The part is the only state. Its source holds the upload's id and metadata, so
//     that an upload goes on after a restart, from the last byte that is durable.
//  3. Who asks how far an upload is means to go on with it: a PATCH under way is
//     cut then. It may be one whose sender has long been gone.
//  4. A body with Upload-Checksum is verified before any of it is appended, and so has
//     to fit in memory: MaxChecked. Others go through as they come.
//  5. A request whose body stalls is given up; what came stays. Only the image waits.
//  6. What cannot become the image ends the upload: wrong checksum, wrong format, no
//     space, more bytes than announced. Nothing is left of it then, nor of one that
//     was terminated or has had no byte for Life.
//
// # Beyond tus
//
// Holes need not be sent: a PATCH without a body and with the header Upload-Zeros: N
// appends N zeros. GET /v1/uploads lists what is under way, and GET of one says what
// became of it, for a while after it ended too. Upload-Metadata names the image by
// the key name, and may say by sha512, sha256 or checksum what the whole has to be.
package upload
