package model

// Sizes in bytes of the file with the hashes of the chunks of an image: a header, and a hash for each chunk.
const (
	ChunkSize       = 1 << 20
	ChunkHeaderSize = 16
	ChunkHashSize   = 32
)

// ChunkFileSize returns the length of the chunk file (the encoded manifest) of an image of size bytes.
func ChunkFileSize(size int64) int64 { return ChunkHeaderSize + ((size-1)/ChunkSize+1)*ChunkHashSize }

// SpaceBeside returns an upper bound of the disk space that a copy needs for the files beside an image of
// size bytes. Without this space a complete image could not become ready, or could not be verified later.
func SpaceBeside(size int64) int64 {
	const (
		block = 4096
		// backing.chunks, and the manifest that a verification makes while the old one exists.
		manifests = 2
		// The record, backing.cfg and their temporary files, the folder, and an extended parent folder,
		// with 8 KiB for each: a block for the content, and one for the inode or the extents.
		others = 64 << 10
	)
	manifest := ChunkFileSize(max(1, size))
	return manifests*((manifest+block-1)/block*block) + others
}
