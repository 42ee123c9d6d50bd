// Package disk keeps images at rest on one disk, in Longhorn's layout, so that
// either program can take over a disk from the other without moving a byte.
//
// # Layout
//
//	<disk>/longhorn-disk.cfg                          who the disk is; flock on it says who writes
//	<disk>/replicas/<volume>-<hex>/volume.meta        who uses which image
//	<disk>/backing-images/<name>-<uuid>/backing       a verified image, never written again
//	                                    backing.cfg   what Longhorn reads about it
//	                                    backing.record  what we remember about it
//	                                    backing.chunks  a SHA-256 for each MiB of it
//	                                    backing.part    an image in the making
//	                                    backing.part.chunks  its journal, chunks to be
//	                                    backing.part.manifest  a peer's; has its name for a moment
//	<disk>/backing-images/.removing-<name>-<uuid>     on its way out, put back after a crash
//
// Nothing is remembered anywhere else, and everything is reached through an
// os.Root, so that no name leads off the disk.
//
// # How bytes become an image
//
//	OpenPart   folder, record (durable); what a crash left is re-read, and
//	           counts as far as its chunk hashes vouch for it
//	Begin      empty the part, then record what its bytes will come from
//	ReadFrom   each byte is hashed once and written once, zeros stay holes;
//	           every chunk's hash goes into the journal
//	Put        the same for a chunk of a peer, whose hash the manifest has told
//	Commit     sync part and chunks -> digests and format checked
//	           -> record with the digest -> rename part to backing, sync folder
//	           -> rename the journal likewise -> backing.cfg -> record with the evidence
//
// Every small file is replaced as a whole: temporary file, sync, rename, sync of
// the folder. A crash between two of these steps leaves a part that resumes, or a
// complete image without evidence, which one read makes ready.
//
// # What vouches for an image
//
// A record vouches for a file as long as the file's size, mtime, ctime and inode
// are the recorded ones, taken after the final rename. Then it is ready and is
// not read again. Otherwise its state is unknown until Verify has read it once:
// against the established digest, or, for a file of Longhorn's, against its
// backing.cfg, which vouches by mtime alone and is therefore not enough.
//
// The hashes of the chunks have a name themselves, the SHA-256 of them all, which is
// in the record. By it a peer can take them for what they are, and a file of them
// that has suffered is not believed.
//
// # Repair
//
// Verify records that an image failed before anything else happens to it, and leaves
// its manifest. Repair then reads it once more, chunk by chunk:
//
//	as the manifest says     it is left alone
//	zeros by the manifest    a hole is made
//	else, or unreadable      fetched, checked against the manifest, written in place,
//	                         read back
//
// Only if the whole then has the established digest, and nobody else wrote meanwhile,
// does the record vouch for it again. A repair that dies leaves a file that nothing
// vouches for, and all that the next one needs.
package disk
