// Package qcow2 reads and writes qcow2 images. It follows the published specification of the format
// and the behaviour of QEMU.
//
//	Inspect   check header, extensions and L1 table of an untrusted file; returns the virtual size
//	Open      Inspect, and check every L2 table once; returns an Image that is read at any offset
//	Encode    convert a Source to a qcow2 file, which is read sequentially
//
// # Reading (header.go, image.go, clusters.go, decompress.go)
//
// Every file is untrusted. This package rejects images that need another file (a backing file, a data
// file), encrypted images, images that were not closed, and images with unknown features. It checks
// offsets against the size of the file. No table or cluster may be used twice. It does not trust the
// size that an L2 entry contains for a compressed cluster.
//
// The memory does not depend on the image. It consists of 16 pages of tables, the clusters that are
// being decompressed and, during Open, the map of used clusters.
//
// These parts of the disk are zeros: clusters without an L2 table or entry, clusters with the zero
// flag, and the part of the last cluster that is after the end of the file.
//
// # Writing (encode.go, layout.go, compress.go)
//
// The file has version 3 and clusters of 64 KiB, and is written sequentially:
//
//	header | refcount table | refcount blocks | L1 table | L2 tables … | standard clusters | compressed clusters
//
// All positions must be known before the first byte is written. NextData of the source returns which
// clusters have data: one bit each. With compression, a first pass compresses all data and keeps only
// the sizes, two bytes for each cluster; the second pass compresses the data again. Clusters that do
// not become smaller are standard clusters.
package qcow2
