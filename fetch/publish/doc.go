// Package publish writes the indexes and the chunk stores of images, for downloads of new versions.
//
//	OpenImage     opens a file, and verifies that it is an image
//	Image.Cut     cuts it into chunks; returns its index
//	Destination   a folder or a bucket; PutChunks writes the chunk store, PutIndex the index
//	Estimate      what a new version of an image costs a client that has the old version
//
// # Promises
//
//  1. An index that exists is complete, and so is its chunk store: the index is written after its chunks.
//  2. A killed run leaves chunks that the next run uses, and at most one temporary file, which the next
//     run in the same folder removes.
//  3. A different index is replaced only on request.
//  4. The memory does not depend on the size of an image. An index is in a temporary file.
//
// # Reading order
//
// image.go, destination.go, chunks.go, estimate.go.
package publish
