// Package track finds the newest version of an image where its vendor publishes versions.
//
//	Resolve(tracker, image):
//	  read what the vendor publishes, and list the versions in it
//	  find the version of the declared address
//	  for each version from the newest down to the declared one:
//	    find its address and its checksum
//	    if the vendor has not published them completely: pass over this version
//	    otherwise this is the release
//	  compare the release with the declaration
//
// # Trackers
//
// A schema.Track declares one of these:
//
//   - Simplestreams: the index and product files of Ubuntu and of Incus.
//   - CoreOS: the stream metadata of Fedora CoreOS.
//   - Listing: a folder on a web server whose files have their version in their name, and checksum lists beside them.
//   - HTTP: one address whose content changes, with a checksum list.
//
// # Promises
//
//  1. An answer never goes back in time: if everything that is published is older than the declared version, the answer is
//     a Refusal. A declared version that is no longer published is usual, and no reason to refuse.
//  2. A checksum is that of the unpacked file. A checksum of a packed file, a checksum of zeros, and two different
//     checksums of one file are refused, and so are two files with the same version.
//  3. Another checksum for an unchanged version is refused, except by HTTP, where it is the update.
//  4. An address in an answer is below the address of the tracker. Only CoreOS has absolute addresses: they must be
//     on the host of the stream, or on the build server of Fedora CoreOS.
//  5. Documents have limited sizes, and parsers send no requests. Anything that a parser does not understand is a
//     Refusal. The rules for hosts, redirects, proxies and credentials are those of package fetch.
//  6. One Resolver reads each document once, for any number of images.
//  7. If an image needs a signature, or the tracker has keys, only the signed text of lists is used. Without a valid
//     signature there is no answer.
//  8. The addresses of the declared list and of its signature change only if the new list vouches for the release.
//
// # Reading order
//
// tracker.go (Resolver, Resolve), judge.go (the comparison with the declaration), refusal.go (reasons),
// version.go (order of versions), signed.go (signed lists), then one file for each tracker.
package track
