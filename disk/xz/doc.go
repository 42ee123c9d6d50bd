// Package xz unpacks .xz files: all streams of a file, with all checksums and the index verified.
//
// If the headers of the blocks have their sizes, as in the files of "xz -T", the Reader decodes
// several blocks at the same time, with at most 128 MiB of input and output.
// It decodes other blocks one after the other, while it reads them. The memory for them is the dictionary,
// whose size the caller limits, and at most as much again. It depends on the bytes that were read, and not on
// sizes that a header promises.
//
// The only filters are LZMA2 and the filter for code of x86 processors.
//
// # Reading order
//
// reader.go (Reader), container.go (header, index and footer of a stream), block.go, job.go (a block in
// memory), lzma2.go (chunks, window), lzma.go (literals and matches), rangecoder.go (bits), x86.go.
package xz
