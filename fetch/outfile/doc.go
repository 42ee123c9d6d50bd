// Package outfile writes an image to a file or a stream for users: sparse, or compressed with gzip or
// zstd.
//
// # How a file is written
//
//	Create        opens and locks FILE.image-part, which an earlier run may have left
//	Resume        reads it, and keeps all chunks before the first one that does not match the manifest
//	AppendChunk   appends one chunk; zeros become holes
//	Commit        compares the checksum, syncs, renames to FILE, syncs the folder
//
// A run that ends early, for any reason, leaves only the partial file. There is no other state: the
// manifest shows which chunks are right. The age of a partial file, and the generation of its image,
// therefore do not matter.
//
// # Compressed files
//
// Each chunk of the image is compressed separately: as a member of a gzip file (RFC 1952) or a frame
// of a zstd file (RFC 8878). Decompressors concatenate the members or frames. The length of a gzip
// member is in the extra field BI of its header. The length of a zstd frame is in a skippable frame of
// four bytes before it, and includes that skippable frame. Resume finds the chunks by these lengths. A
// compressed stream is one single member or frame, so that decompressors detect a truncated stream.
//
// # Reading order
//
// writer.go (Writer), partial.go (Target, the partial file), sink.go (how chunks are
// written), compression.go.
package outfile
