// Package fetch downloads images into a disk.Part, resumes interrupted downloads, and
// classifies failures.
//
//	Download(request, part):
//	  for each address, URL first, then the mirrors in order:
//	    until part has all bytes:
//	      request the bytes from part.Offset() on
//	      if the response is of another version of the file: part.Begin
//	      part.ReadFrom(body)
//	      if the connection broke after some progress: continue at once
//	    after any other failure: try the next address
//
// # Promises
//
//  1. The partial file is the only state. A later Download, of this process or of the
//     next one, continues where the partial file ends.
//  2. A download never joins bytes of two versions of a file. A strong ETag or a
//     Last-Modified date in the past identifies a version. If a declared digest is
//     compared at the end, the same length suffices.
//  3. A body that ends before the promised length is an error. So is a file without a
//     known length, unless a digest is declared: it may be truncated.
//  4. A download sends GET and never HEAD: an address signed for GET works.
//  5. Loopback and link-local hosts are refused: as declared, after each redirect, and
//     when a name is resolved. Proxies of the environment are exempt: the operator
//     chose them.
//  6. Credentials are sent to the origin (scheme, host, port) of the declared URL and
//     to the hosts that they list. A redirect sends them nowhere else, and they never
//     cross a network unencrypted.
//  7. No error contains a query, a user, a password, a token or a header.
//
// # Addresses
//
// go-getter selects one of this package's getters for an address: http, https, file or
// s3 (s3://bucket/key and s3::https://host/bucket/key). The server receives the query of
// a URL unchanged; the parameters that go-getter interprets ("checksum", "archive") have
// no special meaning.
//
// # Packed images
//
// gz, xz, zst and bz2 files are unpacked while they are received. After a broken
// connection, the decompressor continues with the next response. After the end of the
// process, the download starts again: a decompressor cannot start in the middle.
//
// # Other ways to read
//
//   - RangeReader reads parts of an image, by the same rules, for package peer, which
//     has the other parts from peers and verifies each chunk.
//   - Bucket and OpenFolder read and write several files, for package backup.
//   - CountReader, RateLimitReader and StallReader wrap the readers of all sources.
//
// # Errors
//
// Every failure has a Class, and Backoff returns the delay for a class.
//
// # Reading order
//
// fetch.go (Client, Request, Download), download.go (attempts, resume), address.go,
// http.go, s3.go, file.go, then transport.go and credentials.go (hosts, proxies,
// secrets), unpack.go, error.go.
package fetch
