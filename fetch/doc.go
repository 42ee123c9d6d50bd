// Package fetch downloads images into a disk.Part, resumes interrupted downloads, and
// classifies failures.
//
//	Download(request, part):
//	  for each address, URL first, then the mirrors in order:
//	    until part has all bytes:
//	      request the bytes from part.Offset() on
//	      if the response has another version of the file: part.Begin
//	      part.ReadFrom(body)
//	      if the connection broke: retry immediately, a few times without progress
//	    after any other failure: try the next address
//
// # Promises
//
//  1. The partial file is the only state. A later Download, in this process or in the
//     next one, resumes at the end of the partial file.
//  2. A download never combines bytes of two versions of a file. A strong ETag or a
//     Last-Modified date in the past identifies a version. If a declared digest is
//     compared at the end, it is enough that the length is unchanged.
//  3. A body that is shorter than the announced length is an error. If no digest is declared,
//     a body without a marked end is also an error, because it may be truncated.
//  4. A download sends only GET requests, because an address that is signed for GET rejects HEAD.
//  5. The hosts that package host names and addresses of this machine are rejected: in the declared
//     address, after each redirect and after name resolution. Proxies of the environment
//     are allowed, because the operator configured them.
//  6. Credentials are sent only to the origin (scheme, host, port) of the declared URL and to
//     the hosts that the credentials list, also after a redirect. They are never sent
//     unencrypted over a network.
//  7. If a signature is declared, an image is committed only if its bytes match a valid signature.
//  8. No error contains a query, a user, a password, a token or a header.
//
// # Addresses
//
// go-getter selects one of this package's getters for an address: http, https, file or
// s3 (s3://bucket/key and s3::https://host/bucket/key). The server receives path and query of
// a URL unchanged. The syntax of go-getter in them ("//", "checksum", "archive") has no special
// meaning.
//
// # Packed images
//
// gz, xz, zst and bz2 files are unpacked while they are received. After a broken connection, the
// decompressor continues with the next response. After the process has ended, the download starts
// again, because a decompressor cannot start in the middle.
//
// # Other readers
//
//   - RangeReader reads ranges of an image, under the rules above. Package peer uses it for
//     chunks that no peer has, and verifies each chunk.
//   - Bucket and OpenFolder read and write several files, for package backup.
//   - CountReader, RateLimitReader and StallReader are wrappers for the readers of all sources.
//
// # Messages
//
// Send sends a small document to a server under the rules above, but follows no redirect.
//
// # Errors
//
// Every failure has a Class, and Backoff returns the delay before the next attempt for a class.
//
// # Reading order
//
// fetch.go (Client, Request, Download), download.go (attempts, resume), address.go,
// http.go, s3.go, file.go, document.go (small files), checksum.go and verify.go (lists and signatures), then transport.go and credentials.go (hosts, proxies, secrets), unpack.go,
// packing.go, error.go.
package fetch
