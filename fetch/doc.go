// Package fetch moves the bytes of an image from where they are declared to be into
// a disk.Part, once each, and knows what to do when that fails.
//
//	Download(request, part):
//	  for each address, URL first and then the mirrors in order:
//	    until the whole is there:
//	      ask the address for the bytes from part.Offset() on
//	      if what it has is not what the part holds the beginning of: part.Begin
//	      part.ReadFrom(body)
//	      if the connection broke and brought something: go on at once
//	    if that failed for good: go on with the next address
//
// What follows from it:
//
//  1. The part is the only state. A Download that follows another one, in this
//     process or in the next, goes on where the part ends.
//  2. Bytes of two versions of a file are never joined. What says that the version
//     is the same is a strong ETag, a Last-Modified date that is over, or, where a
//     digest is declared that will tell in the end, the same length.
//  3. A clean end before the length that was promised is an error, and so is a file
//     whose end cannot be told from a cut, unless a digest is declared.
//  4. There is one GET, never a HEAD: an address that was signed for GET works.
//  5. A host that is this machine or its link is refused at every step: as declared,
//     after each redirect, and when a name has been resolved. Proxies of the
//     environment are the operator's choice and are not judged.
//  6. Credentials are for the origin (scheme, host, port) of the declared URL and
//     for the hosts that they list themselves. No redirect takes them elsewhere,
//     and they do not cross a network in the clear.
//  7. No error holds a query, a user, a password, a token or a header.
//
// # Addresses
//
// They are dispatched by go-getter to getters of our own: http, https, file, s3
// (s3://bucket/key and s3::https://host/bucket/key). The query of a URL reaches the
// server as it is declared: what go-getter reads into "checksum" and "archive" has
// no meaning here.
//
// # Packed images
//
// They are unpacked as they come: gz, xz, zst and bz2. A connection that breaks is
// taken up below the decompressor; a process that ends loses the packed part, for
// no decompressor can be put where another one stopped.
//
// # Parts of an image
//
// Ranges reads them by the same rules, for those who have the rest from elsewhere and
// can tell right bytes from wrong ones: package peer.
//
// # Buckets and folders
//
// Bucket and Folder open more than one file, to read and to write, for package backup:
// by the rules for s3 and file addresses.
//
// # Errors
//
// Every failure has a Class that says who should do what; Backoff says when.
package fetch
