// Package backup reads and writes Longhorn's backup store for backing images, so
// that either program can restore what the other one has backed up.
//
// # Layout
//
//	<target>/backupstore/backing-images/backing-images/<name>/backing-image.cfg
//	                                    blocks/<ab>/<cd>/<abcd…>.blk
//	                     volumes/22/fc/BACKINGIMAGE/locks/lock-<hex>.lck
//
// An image is cut into blocks of 2 MiB. A block is named by its bytes (the first
// half of their SHA-512), so that all images of a target share those they have in
// common, and stored as it is, as an lz4 frame or as gzip. The cfg lists the blocks
// and their offsets; what it does not list is zeros. A target is a Store: a folder,
// a mounted share or a bucket.
//
// # How an image is restored
//
//	Load         cfg, held against all that can be wrong with it
//	Fill         lock (shared), then for each block, several at once:
//	               read -> unpack, no further than the block is long -> SHA-512 is the name
//	             and in order: holes and blocks into the part
//	the caller   commits the part with the checksum of the cfg
//
// # How an image is backed up
//
//	lock         shared with other backups and restores, not with deletions
//	cfg          without blocks and without a time of completion
//	each block   read -> SHA-256 is that of the copy's manifest -> SHA-512 is the name
//	             -> there already and good, or packed and stored
//	cfg          with all blocks, complete
//
// # How a backup is deleted
//
//	lock         alone
//	cfg          removed
//	each block   removed that no cfg of the target names, if all of them can tell
//
// What follows from it:
//
//  1. A cfg that is complete has all its blocks, whatever was killed when.
//  2. What a killed backup or deletion leaves is a lock that expires after 150 s
//     and blocks that nobody names. The next backup of the image uses them, the next
//     Delete of its name removes them.
//  3. Nothing that comes from a target is trusted: it is held against its sum, or has
//     limits.
//  4. Memory is flat but for the list of blocks: 100 bytes for 2 MiB of data.
package backup
