// Package qcow2 reads and writes qcow2 images. It follows the published specification of the format
// and the behaviour of QEMU.
//
//	Inspect   check all metadata of an untrusted file; returns the virtual size
//	Open      Inspect; returns an Image that is read at any offset
//	Encode    convert a Source to a qcow2 file, which is read sequentially
//
// # Checking (header.go, check.go, clusters.go, snapshots.go)
//
// Every file is untrusted. This package rejects images that need another file (a backing file, a data
// file), encrypted images, images that were not closed, and images with bitmaps or unknown features. It
// reads all tables that QEMU follows: of the disk, the reference counts and snapshots. Each offset must
// be in the file, and each cluster may have one purpose: no table can refer to the header or to another
// table as data. Snapshots may share L2 tables and data with the disk, and compressed clusters may
// share a cluster of the file. An image that QEMU would not open is also rejected.
//
// The memory does not depend on the image: the use of the clusters is kept for at most 16 million
// clusters at a time.
//
// # Reading (image.go, decompress.go)
//
// The memory consists of 16 pages of tables and the clusters that are being decompressed. The size that
// an L2 entry contains for a compressed cluster is not trusted.
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
// All positions must be known before the first byte is written. NextData of the source tells which
// clusters have data: one bit each. With compression, a first pass compresses all data and keeps only
// the sizes, two bytes for each cluster. The second pass compresses the data again. Clusters that
// compression does not make smaller are standard clusters.
package qcow2
