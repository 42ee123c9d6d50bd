// Package qcow2 reads and writes qcow2 images, by the published specification of the format and
// as QEMU does.
//
//	Inspect   check header, extensions and L1 table of an untrusted file; returns the virtual size
//	Open      Inspect, and check every L2 table once; returns an Image that is read at any offset
//	Encode    the other direction: a Source becomes a qcow2 file, read from front to back
//
// # Reading (header.go, image.go, clusters.go, decompress.go)
//
// Every file is untrusted. Refused are images that need another file (a backing file, a data
// file), encrypted images, images that were not closed, and images with unknown features. Offsets
// are checked against the size of the file. No table or cluster may be used twice. The size that
// an L2 entry has for a compressed cluster is not trusted.
//
// Memory does not depend on the image: 16 pages of tables, the clusters that are being
// decompressed, and the map of used clusters during Open.
//
// Zeros are: clusters without an L2 table or entry, clusters with the zero flag, and bytes behind
// the end of the file in its last cluster.
//
// # Writing (encode.go, layout.go, compress.go)
//
// The file has version 3 and clusters of 64 KiB, and is written sequentially:
//
//	header | refcount table | refcount blocks | L1 table | L2 tables … | standard clusters | compressed clusters
//
// So the position of everything must be known before the first byte. NextData of the source
// returns which clusters have data: one bit each. With compression, a first pass over the data
// compresses it and keeps only the sizes, two bytes for each cluster; the second pass compresses
// it again. Clusters that do not become smaller are standard clusters.
package qcow2
