// Package backup reads and writes Longhorn's backup store for backing images. Longhorn can restore
// the backups of this program, and this program can restore the backups of Longhorn.
//
// # Layout
//
//	<target>/backupstore/backing-images/backing-images/<name>/backing-image.cfg
//	                                    blocks/<ab>/<cd>/<abcd…>.blk
//	                     volumes/22/fc/BACKINGIMAGE/locks/lock-<hex>.lck
//
// An image is split into blocks of 2 MiB. The name of a block is the first half of the SHA-512 of its
// bytes, so equal blocks of several images are stored only once. A block file contains the bytes
// uncompressed, as an lz4 frame, or as gzip. The cfg lists the blocks and their offsets; the rest of
// the image is zeros. A target is a Store: a folder, a mounted share or a bucket.
//
// # Restore
//
//	LoadComplete   reads the cfg and validates it
//	Restore.Fill   acquires a shared lock; fetches several blocks at a time, unpacks each
//	               one within its length and compares its SHA-512 with its name; appends
//	               blocks and holes in order
//	the caller     commits the partial file with the checksum in the cfg
//
// # Backup
//
//	lock           shared with other backups and restores; no deletion runs at that time
//	cfg            without blocks and without a time of completion
//	each block     compare its chunks with the manifest of the copy, compute its name,
//	               and store it unless the Store has it undamaged
//	cfg            with all blocks and the time of completion
//
// # Deletion
//
//	lock           exclusive
//	cfg            removed
//	each block     removed if all cfgs of the target are readable and none uses the block
//
// # Promises
//
//  1. If a cfg is complete, all its blocks exist, even if processes are killed.
//  2. A killed backup or deletion leaves a lock, which expires after 150 s, and unused blocks.
//     The next backup of the image uses these blocks, or the next deletion of its name
//     removes them.
//  3. Everything that is read from a target is untrusted: it is verified or limited.
//  4. Memory is limited, except for the list of blocks: 100 bytes for each 2 MiB of data.
//
// # Reading order
//
// layout.go (keys and names), cfg.go (Backup), catalog.go (list and load), store.go with
// folder.go, bucket.go and target.go (targets), lock.go, backup.go (Creator), restore.go
// with memory.go, delete.go.
package backup
