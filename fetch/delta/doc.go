// Package delta downloads an image by its index: it takes each chunk from the cheapest place that has it.
//
//	zeros          a hole
//	seeds          older generations and other images on this node: copied, or their blocks are shared
//	repeated       a chunk that occurs before in the image: read back from the partial file
//	chunk store    one packed file for each chunk, if a store is declared
//	ranges         of the image file at its URL or at a mirror; neighbouring ranges are joined into one request
//
// The path of an image:
//
//	Download.Into
//	  openIndex          the index: from the partial file of an earlier attempt, or from the upstream
//	  assemble.ByIndex   the plan: what the seeds have, by their indexes, which are stored beside them or cut from their bytes
//	  upstream           the source of what is missing: the chunk store, and ranges of the image file
//	  assemble.Assembly  requests it, and appends everything to the partial file in order
//
// # Promises
//
//  1. The index never decides which bytes are right. Each chunk from the network is compared with its id in the index;
//     each chunk of a seed is compared with the seed's own chunk manifest, and the chunk's id comes from the seed's index.
//     The digest of the whole file, which disk.Part.Commit compares, decides.
//  2. An index or a store that is missing or damaged, or that describes other bytes, does not fail the download: Into then
//     downloads the whole file, and warns once. It keeps the bytes up to the last boundary of 1 MiB before the first
//     difference, if all of them matched the index. The chunk that shows the difference is transferred twice.
//  3. The memory does not depend on the size of the image or of the index. Indexes are mapped temporary files
//     on the disk of the image.
//  4. Seeds are only read. A damaged or unreadable chunk of a seed is reported and fetched.
//  5. At most window bytes are fetched before they are appended, so that little is fetched twice after a kill.
//  6. An attempt keeps the bytes of earlier attempts, also bytes that were downloaded without the index.
//
// # Reading order
//
// delta.go, upstream.go; estimate.go for the cost before a download begins; package assemble for the rest.
package delta
