// Package qcow2 reads and writes qcow2 images, by the published specification of the
// format, as QEMU does.
//
//	Inspect   header, extensions and L1 table of a foreign file: how large is the disk?
//	Open      the same, and every L2 table once; then an Image, read at any offset
//	Encode    the other way: a Source becomes a qcow2 file, front to back
//
// # Reading
//
// A file of a stranger is hostile until the opposite is shown. Images that need another
// file (a backing file, a data file) are refused, and so are encrypted ones, unclean ones
// and such with features that nobody here knows. Offsets are held against the size of the
// file, tables and clusters may be referenced once only, and what a compressed cluster
// says of its size is not believed. Memory is the same for all images: 16 pages of
// tables, the clusters that are being unpacked, and the marks of Open.
//
// Zeros are what no entry of a table stands for, what an entry calls zeros, and what
// lies behind the end of the file in its last cluster.
//
// # Writing
//
// The file is of version 3 with clusters of 64 KiB, and is written in one go:
//
//	header | table of reference counts | blocks of reference counts | L1 | L2 … | clusters | packed clusters
//
// So everything has to be known before the first byte. NextData of the source says which
// clusters there are, a bit each. With compression, a first pass over the data packs it and
// keeps only the sizes, two bytes for each cluster; the second pass packs it again. What
// does not become smaller goes among the plain clusters.
package qcow2
