// Package disk manages the images on one disk, in Longhorn's file layout. This program can adopt a
// disk of Longhorn, and Longhorn one of this program, without moving data.
//
// # Layout
//
//	<disk>/longhorn-disk.cfg                          identity of the disk; the writer holds a flock on it
//	<disk>/replicas/<volume>-<hex>/volume.meta        Longhorn: which image the replica of a volume uses
//	<disk>/backing-images/<name>-<uuid>/backing       the image, complete and verified
//	                                    backing.cfg   Longhorn's description of it
//	                                    backing.record  the record of this program about the copy
//	                                    backing.chunks  chunk manifest: a hash for each MiB
//	                                    backing.caibx   index of the image, if it was downloaded by one
//	                                    backing.part    partial file
//	                                    backing.part.chunks  journal of the partial file; becomes the chunk manifest
//	                                    backing.part.caibx   index of the partial file; becomes backing.caibx
//	                                    backing.part.tmp  temporary file, for example of an index that is received
//	                                    backing.leaving.*      mark of a withdrawn copy
//	                                    backing.removed        image during its removal, restored after a crash
//	<disk>/backing-images/.removing-<name>-<uuid>     folder under removal, restored after a crash
//
//	<disk>/backing-image-manager.users                which replicas named images when they were last read
//	<disk>/backing-image-manager.commit               the last accepted commit
//
// No other state is stored. backing.record and backing-image-manager.users contain the version of their format. A
// copy whose record has another version is left alone. With another version of the users, every copy counts as in use.
//
// All files are opened through an os.Root, so no name and no link can refer to a file outside the disk.
//
// # Reading order
//
//	format.go                     the format of an image file; package ident has images and digests
//	disk.go folder.go             a disk, and the last accepted commit of the configuration; the folder of one image
//	record.go cfg.go              the two small files that describe a copy
//	copies.go                     the observed state of the copies: Stat, List
//	part.go clone.go commit.go    partial file: append and resume; fill it from another copy; turn it into the image
//	verify.go repair.go remove.go operations on an existing image
//	mark.go                       whether two copies are one folder
//	reader.go manifest.go chunkhash.go  read an image, its chunk manifest and the hashes in it
//	index.go                      the files beside a partial file; the index of an image, for downloads of its later generations
//	users.go need.go              which images are in use, when a use has ended, and which images replicas need
//	replicas.go                   read Longhorn's replicas and other files that change
//	pipeline.go fileio.go pagecache.go lease.go   mechanisms that the files above use
//
// A Disk has three groups of methods. The type mount is about the file system. The type replicas is about Longhorn's
// volumes, for package disk/replica. All others are about images: Stat, List, OpenPart, Open, Verify, Repair, Remove.
// They are in one package, because Remove must know which replicas use an image (Users).
//
// # From bytes to an image
//
//	OpenPart     create the folder and write the record, durably. If a crash left a partial file:
//	             read it back, and keep the chunks that match their hashes in the journal.
//	Begin        empty the partial file, then record the source of its bytes
//	ReadFrom     hash each byte on its way and write it once; zeros stay holes; the hash of every
//	             chunk goes to the journal
//	AppendChunk  like ReadFrom, for a chunk from a peer: its hash is in the manifest of the peer
//	AppendFrom   like AppendChunk, for a chunk of another image on this disk: where the file system
//	             can, it shares the blocks, reads them back from the partial file and compares the hash
//	Commit       check digest and format -> set the mode, sync the file and its journal
//	             -> write the digest to the record -> rename the file to backing, sync the folder
//	             -> rename the journal to backing.chunks, the index to backing.caibx -> write backing.cfg
//	             -> remove what is left of the partial file -> write the evidence to the record
//
// Every small file is replaced as a whole: write a temporary file, sync, rename, sync the
// folder. A crash between two of these steps leaves a partial file that can be resumed, or
// a complete image without evidence: one Verify makes it ready.
//
// # When a copy is ready
//
// A record is valid for a file while the size, mtime, ctime and inode of the file equal the recorded
// evidence. The evidence is recorded after the final rename. A copy with a valid record is Ready and
// is not read again. Otherwise its state is Unknown until Verify has read all bytes and compared them
// with the established digest in the record or, for Longhorn's files, in backing.cfg. The mtime in
// backing.cfg alone is not enough evidence.
//
// The record also has the digest of the chunk manifest (the SHA-256 of its encoded form). Peers
// identify manifests by this digest, and a manifest file with another digest is damaged.
//
// The hashes of a manifest are all BLAKE3 or all SHA-256 (chunkhash.go). A declared checksum covers only the
// whole file, so the algorithm of the chunks can be chosen for its speed. An image keeps its algorithm: a
// verification uses it again, and a copy from peers has the manifest of the peers.
//
// # Removal
//
// Remove renames the folder aside, so that no new user finds the image. It checks once more for users, and for the mark of
// the withdrawal. It renames the image to backing.removed, checks the mark again, and deletes the image first and the record
// last. If a full file system has no space to rename the folder, Remove takes a write lease on the image instead. After a
// crash the copy is restored whole, or the image is gone. In both cases the folder still belongs to this program.
//
// # Repair
//
// Verify first records durably that a copy is damaged, and keeps its manifest. Repair then
// reads the file once more, chunk by chunk:
//
//	matches the manifest       no change
//	zeros in the manifest      punch a hole
//	does not match, read error fetch the chunk, check it against the manifest, write it in place,
//	                           read it back
//
// The record becomes valid again only if the whole file then has the established digest and no other
// process wrote to it during the repair. After an interrupted repair the copy is failed, and its
// files allow another attempt.
package disk
